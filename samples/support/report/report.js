'use strict';
// Draws the report from the JSON in #data. Times are nanoseconds. Names come from outside: they become text, never markup.
const data = JSON.parse(document.getElementById('data').textContent);
const kinds = data.kinds;
const SVG = 'http://www.w3.org/2000/svg';
const $ = (id) => document.getElementById(id);
const state = {step: 0, from: 0, to: 1};  // from and to: the part of the step that is shown

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  made.append(...children);
  return made;
}
function svg(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  made.append(...children);
  return made;
}
const count = (n) => Math.round(n).toString().replace(/\B(?=(\d{3})+$)/g, ',');
const bytes = (n) => (Number.isInteger(n) ? count(n) : n.toFixed(1)) + ' B';
function time(ns) {
  if (ns < 1e3) return ns.toFixed(0) + ' ns';
  if (ns < 1e6) return (ns / 1e3).toFixed(1) + ' \u00b5s';
  return (ns / 1e6).toFixed(2) + ' ms';
}
const percent = (part, all) => (all > 0 ? (100 * part / all).toFixed(0) : '0') + ' %';
const endName = (mode, end) => (mode === 'ddp' ? 'rank ' : 'cpu:') + end;

// An event is [kind, name, begin, duration, depth, bytes, id, from, to]; what is missing at its end is -1.
const field = (event, at) => event[at] === undefined ? -1 : event[at];
function category(kind, outer) {
  switch (kinds[kind]) {
    case 'forward': return 'forward';
    case 'backward': return 'backward';
    case 'optimizer': return 'optimizer';
    case 'copy': case 'collective': return 'communication';
    case 'wait': return 'waiting';
    case 'kernel': return (outer || 'forward') + ' kernel';
    case 'user': return 'other';
    default: return 'moment';
  }
}
function describe(mode, lane, event) {
  const kind = kinds[event[0]], name = mode.names[event[1]];
  let text = lane.name + ': ' + kind + (name && name !== kind ? ' ' + name : '');
  if (kind.startsWith('bucket')) text = `${lane.name}: bucket ${field(event, 6)} ${kind.slice(7)} (${name})`;
  else if (kind === 'collective' || (kind === 'wait' && field(event, 6) >= 0)) text += ' #' + field(event, 6);
  text += `, from ${time(event[2])}`;
  if (event[3] > 0) text += ` to ${time(event[2] + event[3])}: ${time(event[3])}`;
  if (field(event, 5) >= 0) text += ', ' + bytes(event[5]);
  if (kind === 'copy') text += `, ${endName(mode.mode, field(event, 7))} to ${endName(mode.mode, field(event, 8))}`;
  const late = awaited(mode.steps[state.step], lane, event);
  if (late) text += `; waits for ${late.lane.name}, which came last, at ${time(late.at)}`;
  return text;
}

// The lane that came last to the collective which `event` waits for, and when; null where the clocks cannot tell.
function awaited(step, lane, event) {
  if (kinds[event[0]] !== 'wait' || field(event, 6) < 0 || field(event, 8) >= 0) return null;  // a message's number
  const known = step.arrivals.filter((each) => each.id === event[6]);
  if (known.length !== 1 || !known[0].certain) return null;
  const last = step.lanes.find((each) => each.name === 'rank ' + known[0].last);
  const launch = last && last.events.find((each) => kinds[each[0]] === 'collective' && each[6] === event[6] && field(each, 8) < 0);
  return launch && last !== lane && launch[2] > event[2] ? {lane: last, at: launch[2]} : null;
}

// ---- one step ----
const kLabel = 64, kRow = 20, kGap = 10, kAxis = 22;

function rowsOf(lane) {
  let rows = 1, flights = 0;
  for (const event of lane.events) {
    rows = Math.max(rows, field(event, 4) + 1);
    if (field(event, 4) < 0) flights = 1;
  }
  return {rows, flights};
}

function eventNode(mode, lane, event, outer, late, x, y, width) {
  const classes = category(event[0], outer);
  const text = describe(mode, lane, event);
  const node = svg('g', {class: 'event ' + classes, tabindex: -1, role: 'img', 'aria-label': text});
  if (classes === 'moment') {
    const up = kinds[event[0]] === 'bucket done' ? -1 : 1;
    node.append(svg('path', {d: `M${x} ${y + 10 - 5 * up}l4 ${8 * up}h-8z`}));
  } else {
    node.append(svg('rect', {x, y, width: Math.max(width, 1), height: kRow - 2, rx: 1}));
    const names = classes === 'waiting' ? [...(late ? ['waits for ' + late.lane.name] : []), 'wait'] : [mode.names[event[1]]];
    const name = names.find((each) => each.length * 6.6 + 6 < width);
    if (name !== undefined) node.append(svg('text', {x: x + 4, y: y + 13}, name));
  }
  const show = () => { $('details').textContent = text; };
  node.addEventListener('focus', show);
  node.addEventListener('pointerenter', show);
  return node;
}

function laneNode(mode, lane, top, scale) {
  const {rows, flights} = rowsOf(lane);
  const height = (rows + flights) * kRow;
  const node = svg('g', {class: 'lane-of', role: 'list', 'aria-label': `${mode.mode} ${lane.name}`});
  node.append(svg('rect', {class: 'lane', x: kLabel, y: top, width: scale.width - kLabel, height}),
              svg('text', {x: 0, y: top + 14, class: 'lane-name'}, lane.name));
  const outer = [];  // categories of the events around
  const waits = [];
  let first = null;
  for (const event of lane.events) {
    const depth = field(event, 4);
    if (depth >= 0) outer.length = depth;
    const around = outer.findLast ? outer.findLast(Boolean) : outer[outer.length - 1];
    const own = category(event[0], around);
    if (depth >= 0) outer[depth] = ['forward', 'backward', 'optimizer'].includes(own) ? own : around;
    const begin = scale.x(event[2]), end = scale.x(event[2] + event[3]);
    if (end < kLabel || begin > scale.width) continue;
    const left = Math.max(begin, kLabel), right = Math.min(end, scale.width);
    const y = top + (depth >= 0 ? depth : rows) * kRow + 1;
    const late = awaited(mode.steps[state.step], lane, event);
    if (late) waits.push({...late, y: y + kRow / 2 - 1});
    const drawn = eventNode(mode, lane, event, around, late, left, y, right - left);
    node.append(drawn);
    first = first || drawn;
  }
  if (first) first.setAttribute('tabindex', 0);
  return {node, height, waits, middle: top + rows * kRow + kRow / 2};
}

// Who waits for whom: from the lane that came last, when it came, to each that waited.
function arrow(x, from, to) {
  const up = to < from ? 1 : -1;
  return svg('g', {class: 'arrow', 'aria-hidden': 'true'}, svg('line', {class: 'late', x1: x, x2: x, y1: from, y2: to}),
             svg('path', {class: 'late', d: `M${x} ${to}l4 ${8 * up}h-8z`}));
}

function niceStep(span) {
  const power = 10 ** Math.floor(Math.log10(span));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => span / n <= 6) || 10 * power;
}

function drawFigure(figure, mode, span) {
  const step = mode.steps[state.step];
  const old = figure.querySelector('svg');
  if (old) old.remove();
  const caption = figure.querySelector('figcaption span');
  if (!step) { caption.textContent = ': no such step in the trace'; return; }
  const own = $('one-scale').checked ? span : step.ns;
  const width = Math.max(figure.clientWidth, 280);
  const from = state.from * own, to = state.to * own;
  const scale = {width, x: (ns) => kLabel + (ns - from) / (to - from) * (width - kLabel)};
  const drawing = svg('svg', {role: 'group', 'aria-label': `Step ${step.number} of mode ${mode.mode}`});
  let top = kAxis;
  const drawn = new Map();
  for (const lane of step.lanes) {
    drawn.set(lane, laneNode(mode, lane, top, scale));
    drawing.append(drawn.get(lane).node);
    top += drawn.get(lane).height + kGap;
  }
  for (const {waits} of drawn.values()) {
    for (const late of waits) {
      const x = scale.x(late.at);
      if (x >= kLabel && x <= width) drawing.append(arrow(x, drawn.get(late.lane).middle, late.y));
    }
  }
  const tick = niceStep((to - from) * (width < 600 ? 2 : 1));
  for (let at = Math.ceil(from / tick) * tick; at <= to; at += tick) {
    const x = scale.x(at);
    drawing.prepend(svg('line', {class: 'axis', x1: x, x2: x, y1: kAxis - 6, y2: top - kGap}),
                    svg('text', {class: 'tick', x, y: 12, 'text-anchor': x > width - 40 ? 'end' : x < kLabel + 20 ? 'start' : 'middle'}, time(at)));
  }
  drawing.setAttribute('viewBox', `0 0 ${width} ${top}`);
  drawing.setAttribute('height', top);
  drawing.addEventListener('keydown', toNeighbour);
  caption.textContent = `: step ${step.number}, ${time(step.ns)}`;
  figure.append(drawing);
  drawOverview(figure.querySelector('canvas'), mode);
}

// Up and down: the event before or after in its lane.
function toNeighbour(event) {
  const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
  const node = event.target.closest('.event');
  if (!step || !node) return;
  const all = [...node.parentNode.querySelectorAll('.event')];
  const next = all[all.indexOf(node) + step];
  if (!next) return;
  event.preventDefault();
  node.setAttribute('tabindex', -1);
  next.setAttribute('tabindex', 0);
  next.focus();
}

const sharesOf = (step) => step.lanes.reduce((sum, lane) => sum.map((n, i) => n + lane.shares[i]), [0, 0, 0, 0]);
const shareColours = ['--forward', '--communication', '--waiting', '--other'];

// All steps: a bar for each, as high as it is long, with its shares.
function drawOverview(canvas, mode) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = 44;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const paint = canvas.getContext('2d'), colours = getComputedStyle(document.documentElement);
  paint.scale(ratio, ratio);
  const longest = Math.max(...mode.steps.map((step) => step.ns)), wide = width / mode.steps.length;
  mode.steps.forEach((step, i) => {
    const shares = sharesOf(step), all = shares.reduce((a, b) => a + b, 0);
    let y = height;
    shares.forEach((share, s) => {
      const high = all > 0 ? share / all * step.ns / longest * (height - 6) : 0;
      y -= high;
      paint.fillStyle = colours.getPropertyValue(shareColours[s]);
      paint.fillRect(i * wide + 1, y, wide - 2, high);
    });
    if (i !== state.step) return;
    paint.strokeStyle = colours.getPropertyValue('--ink');
    paint.lineWidth = 2;
    paint.strokeRect(i * wide + 1, 1, wide - 2, height - 2);
  });
}

const stepCount = Math.max(0, ...data.modes.map((mode) => mode.steps.length));

function draw() {
  const span = Math.max(1, ...data.modes.map((mode) => mode.steps[state.step] ? mode.steps[state.step].ns : 0));
  data.modes.forEach((mode, i) => drawFigure($('figures').children[i], mode, span));
  $('step-number').textContent = stepCount ? `step ${state.step + 1} of ${stepCount} traced` : 'no step was traced';
  $('previous').disabled = state.step <= 0;
  $('next').disabled = state.step + 1 >= stepCount;
  drawArrivals();
  drawStepMatrices();
}
function goTo(step) {
  state.step = Math.min(Math.max(step, 0), Math.max(stepCount - 1, 0));
  draw();
}
function zoom(factor) {
  const middle = (state.from + state.to) / 2, half = Math.min((state.to - state.from) * factor, 1) / 2;
  const from = Math.min(Math.max(middle - half, 0), 1 - 2 * half);
  if (half * 2 < 1e-4) return;
  Object.assign(state, {from, to: from + 2 * half});
  draw();
}
function pan(direction) {
  const size = state.to - state.from, from = Math.min(Math.max(state.from + direction * size / 4, 0), 1 - size);
  Object.assign(state, {from, to: from + size});
  draw();
}

function makeFigures() {
  for (const mode of data.modes) {
    const canvas = element('canvas', {role: 'img', 'aria-label': `All traced steps of mode ${mode.mode}: how long each took`});
    canvas.addEventListener('click', (event) => goTo(Math.floor(event.offsetX / canvas.clientWidth * mode.steps.length)));
    const lanes = mode.steps.length ? mode.steps[0].lanes.length : 0;
    const caption = element('figcaption', {}, `${mode.mode}, ${lanes} ${mode.mode === 'ddp' ? 'ranks' : lanes === 1 ? 'device' : 'devices'}`);
    caption.append(element('span', {}));
    const figure = element('figure', {id: 'figure-' + mode.mode}, caption, canvas);
    addCopyButton(caption, () => figure.querySelector('figure > svg'), () => `${data.program}: ${caption.firstChild.data}${caption.children[0].textContent}`);
    $('figures').append(figure);
  }
  const handlers = {previous: () => goTo(state.step - 1), next: () => goTo(state.step + 1), 'zoom-in': () => zoom(0.5),
                    'zoom-out': () => zoom(2), 'pan-left': () => pan(-1), 'pan-right': () => pan(1),
                    whole: () => { Object.assign(state, {from: 0, to: 1}); draw(); }};
  for (const id in handlers) $(id).addEventListener('click', handlers[id]);
  $('one-scale').addEventListener('change', draw);
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches('textarea, select, input[type=number]')) return;
    const keys = {ArrowLeft: 'previous', ArrowRight: 'next', '+': 'zoom-in', '-': 'zoom-out', 0: 'whole'};
    if (keys[event.key]) handlers[keys[event.key]]();
  });
  window.addEventListener('resize', draw);
}

function makeLegend() {
  const defs = svg('svg', {width: 0, height: 0, 'aria-hidden': 'true'}, svg('defs', {},
    svg('pattern', {id: 'dots', width: 6, height: 6, patternUnits: 'userSpaceOnUse'},
        svg('rect', {class: 'dots', width: 6, height: 6}), svg('circle', {class: 'dot', cx: 3, cy: 3, r: .8})),
    svg('pattern', {id: 'stripes', width: 6, height: 6, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)'},
        svg('rect', {class: 'stripes', width: 6, height: 6}), svg('line', {class: 'stripe', x1: 0, x2: 0, y1: 0, y2: 6}))));
  document.body.prepend(defs);
  const texts = {forward: 'forward', backward: 'backward', optimizer: 'optimizer', communication: 'communication (dotted)',
                 waiting: 'waiting (striped)', other: 'marked by the program'};
  for (const key in texts) {
    const box = svg('svg', {width: 18, height: 14, 'aria-hidden': 'true', class: key}, svg('rect', {width: 18, height: 14}));
    $('legend').append(element('li', {}, box, texts[key]));
  }
  if (data.modes.some((mode) => mode.mode === 'ddp')) $('legend').append(element('li', {}, '\u2195 arrow: from the rank that came last to one that waited'));
  $('legend').append(element('li', {}, '\u25b2 bucket ready or launched, \u25bc done; pale: kernels'));
}

// ---- tables ----
function table(target, head, rows) {
  target.append(element('thead', {}, element('tr', {}, ...head.map((text) => element('th', {scope: 'col'}, text)))));
  const body = element('tbody', {});
  for (const row of rows) {
    const cells = row.map((cell, i) => i === 0 ? element('th', {scope: 'row'}, cell) : cell instanceof Node ? cell
                                                                                    : element('td', {}, cell));
    body.append(element('tr', {}, ...cells));
  }
  target.append(body);
}

const times = (n) => `${+n.toFixed(2)} transfer${n === 1 ? '' : 's'}`;

// What a phase moved, by link: from the books.
function moved(mode, phase, links, perStep) {
  const cell = [];
  for (const link of links.filter((each) => each.phase === phase)) {
    const steps = perStep ? Math.max(mode.step_count, 1) : 1;
    cell.push(element('div', {class: 'link'}, `${endName(mode.mode, link.from)} to ${endName(mode.mode, link.to)}: `,
                      element('b', {}, bytes(link.bytes / steps)),
                      ` in ${times(link.transfers / steps)} ` + (perStep ? 'a step' : 'before the first step')));
  }
  return cell;
}

const prose = {
  'loads data': {single: 'One process, the whole batch.', accumulate: 'One process, the whole batch.',
                 dp: 'One process, the whole batch.', ddp: 'Each rank loads the rows of its micro-batches only.'},
  'splits the batch': {single: 'Not split.', accumulate: 'Into micro-batches, run in turn on one device.',
                       dp: 'Device 0 sends each replica its rows.', ddp: 'Nothing to send: the sampler has dealt the rows.',
                       phase: 'inputs'},
  'sends parameters': {single: 'No.', accumulate: 'No.', dp: 'Device 0 to every replica, after each update.',
                       ddp: 'Only once, from rank 0: afterwards all make the same update.', phase: 'parameters'},
  'sends buffers': {single: 'No.', accumulate: 'No.', dp: 'Device 0 to every replica, where the model has some.',
                    ddp: 'Rank 0 to every rank, where the model has some.', phase: 'buffers'},
  'collects outputs': {single: 'No.', accumulate: 'No.', dp: 'Replicas to device 0, which takes the loss.',
                       ddp: 'No: each rank takes its own loss.', phase: 'outputs'},
  'returns the loss gradient': {single: 'No.', accumulate: 'No.', dp: 'Device 0 to every replica, where the loss is taken there.',
                                ddp: 'No.', phase: 'loss gradient'},
  'sums gradients': {single: 'No.', accumulate: 'Added up in canonical order, in place.',
                     dp: 'Replicas to device 0, when backward is over.',
                     ddp: 'All-reduce of buckets, while backward runs.', phase: 'gradients'},
  'updates': {single: 'One optimizer.', accumulate: 'One optimizer.', dp: 'One optimizer, on device 0.',
              ddp: 'Every rank, with the same numbers.'},
};

function makePhases() {
  const rows = Object.entries(prose).map(([name, texts]) => [name, ...data.modes.map((mode) => {
    const cell = element('td', {'data-mode': mode.mode, 'data-phase': texts.phase || ''}, texts[mode.mode] || '');
    if (texts.phase) cell.append(...moved(mode, texts.phase, mode.at_start, false), ...moved(mode, texts.phase, mode.links, true));
    return cell;
  })]);
  table($('phases'), ['phase', ...data.modes.map((mode) => mode.mode)], rows);
}

function makeOverlap() {
  const rows = data.modes.map((mode) => {
    const steps = Math.max(mode.steps.length, 1), lanes = mode.steps.length ? mode.steps[0].lanes.length : 1;
    const [, communication, waiting] = mode.shares;
    const [earlyBytes, bytes, earlySeconds, seconds] = mode.steps.reduce((sum, step) => sum.map((n, i) => n + step.overlap[i]), [0, 0, 0, 0]);
    const error = Math.max(0, ...mode.clocks.map((clock) => clock.error)), dropped = mode.clocks.reduce((sum, clock) => sum + clock.dropped, 0);
    return [mode.mode, bytes ? `${percent(earlyBytes, bytes)} of the bytes, ${percent(earlySeconds, seconds)} of the time` : 'no buckets',
            time(communication / steps / lanes), time(waiting / steps / lanes),
            mode.clocks.length > 1 ? `\u00b1 ${time(error)}` : 'one clock', count(dropped)];
  });
  table($('overlap'), ['mode', 'communicated before the last gradient was ready', 'exposed communication a step and lane', 'waiting a step and lane', 'clocks agree to', 'events dropped'], rows);
}

function makeLosses() {
  const curves = data.modes.filter((mode) => mode.losses.some((row) => row[1] !== null));
  const points = curves.flatMap((mode) => mode.losses).filter((row) => row[1] !== null);
  if (!points.length) return $('losses').append(element('p', {}, 'No epoch was completed.'));
  const width = 600, height = 220, left = 48, bottom = 24;
  const last = Math.max(...points.map((row) => row[0])), most = Math.max(...points.map((row) => Math.max(row[1], row[2] || 0)), 1e-9);
  const x = (epoch) => left + (last > 1 ? (epoch - 1) / (last - 1) : 0.5) * (width - left - 10);
  const y = (loss) => 8 + (1 - loss / most) * (height - bottom - 8);
  const drawing = svg('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': 'Training loss by epoch'});
  for (const part of [0, .25, .5, .75, 1])
    drawing.append(svg('line', {class: 'axis', x1: left, x2: width, y1: y(part * most), y2: y(part * most)}),
                   svg('text', {class: 'tick', x: left - 6, y: y(part * most) + 4, 'text-anchor': 'end'}, (part * most).toFixed(2)));
  drawing.append(svg('text', {class: 'tick', x: left, y: height - 6}, 'epoch 1'),
                 svg('text', {class: 'tick', x: width - 10, y: height - 6, 'text-anchor': 'end'}, 'epoch ' + last));
  const rows = [];
  curves.forEach((mode, i) => {
    const known = mode.losses.filter((row) => row[1] !== null), at = known.map((row) => `${x(row[0])},${y(row[1])}`).join(' ');
    drawing.append(known.length > 1 ? svg('polyline', {class: 'curve mode' + i % 4, points: at})
                                    : svg('circle', {class: 'curve mode' + i % 4, cx: x(known[0][0]), cy: y(known[0][1]), r: 3 + 2 * i}));
    const end = known[known.length - 1], line = 18 + 16 * i;
    drawing.append(svg('line', {class: 'curve mode' + i % 4, x1: width - 100, x2: width - 64, y1: line, y2: line}),
                   svg('text', {x: width - 58, y: line + 4}, mode.mode));
    const key = svg('svg', {width: 36, height: 8, 'aria-hidden': 'true'}, svg('line', {class: 'curve mode' + i % 4, x1: 0, x2: 36, y1: 4, y2: 4}));
    const name = element('span', {}, key, ' ' + mode.mode);
    rows.push([name, count(end[0]), end[1].toFixed(6), end[2] === null ? 'not a number' : end[2].toFixed(6)]);
  });
  const tools = element('div', {});
  addCopyButton(tools, () => drawing, () => `${data.program}: training loss by epoch`);
  const made = element('table', {id: 'loss-table'});
  table(made, ['mode', 'epochs', 'training loss', 'test loss'], rows);
  $('losses').append(tools, drawing, element('p', {class: 'note'}, 'Curves with the same bits lie on one another: the modes make the same updates.'),
                     element('div', {class: 'scroll'}, made));
}

// {{tools}}

$('title').textContent = 'Lockstep: ' + data.program;
$('command').textContent = data.command;
for (const mode of data.modes) $('verdicts').append(element('li', {id: 'verdict-' + mode.mode}, element('b', {}, mode.mode), ': ' + mode.verdict));
makeLegend();
makeFigures();
makePhases();
makeGuess();
makeMatrices();
makeOverlap();
makeLosses();
draw();
document.documentElement.dataset.ready = 'yes';
