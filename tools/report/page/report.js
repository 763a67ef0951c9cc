'use strict';
// Draws the report from the JSON in #data. Times are nanoseconds. Names come from outside: they become text, never markup.
const data = JSON.parse(document.getElementById('data').textContent);
const kinds = data.kinds;
const SVG = 'http://www.w3.org/2000/svg';
const $ = (id) => document.getElementById(id);
const state = {from: 0, to: 1};  // the part of the step that is shown

// No line ends between a number and its unit.
const bound = (text) => typeof text === 'string' ? text.replace(/(\d) (?=([num\u00b5]?s|[kMG]?B|%)(?![A-Za-z]))/g, '$1\u00a0') : text;
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  made.append(...children.map(bound));
  return made;
}
function svg(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  made.append(...children);
  return made;
}
const grouped = (text) => text.replace(/\B(?=(\d{3})+(\.|$))/g, ',');
const count = (n) => grouped(Math.round(n).toString());
const bytes = (n) => Number.isInteger(n) ? count(n) + ' B' : grouped(n.toFixed(n < 1000 ? 1 : 0)) + ' B on average';
function time(ns) {
  if (ns < 1e3) return ns.toFixed(0) + ' ns';
  if (ns < 1e6) return (ns / 1e3).toFixed(1) + ' us';
  return (ns / 1e6).toFixed(2) + ' ms';
}
const percent = (part, all) => (all > 0 ? (100 * part / all).toFixed(0) : '0') + ' %';
const isSharded = (mode) => mode.mode === 'sharded' || mode.mode.startsWith('zero');
const hasRanks = (mode) => mode.mode === 'ddp' || mode.mode === 'ranks' || isSharded(mode);
const endName = (mode, end) => (hasRanks(mode) ? 'rank ' : 'cpu:') + end;

// Each mode starts at its median step, so that one slow step does not stand for all.
data.modes.forEach((mode, i) => {
  mode.id = mode.name.replace(/[^A-Za-z0-9_]/g, '-') + (data.modes.findIndex((each) => each.name === mode.name) < i ? '-' + i : '');
  const order = mode.steps.map((step, at) => [step.ns, at]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  mode.median = order.length ? order[(order.length - 1) >> 1][1] : 0;
  mode.shown = mode.median;
});
const shownStep = (mode) => mode.steps[mode.shown];

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

// The events of a lane with the rows in which they are drawn. Forward events are named "fc Linear": a layer's label is its
// path and type, "body.1 Linear". Of a layer that only encloses one other layer, just one is drawn.
function layersOf(mode, lane) {
  if (lane.layers) return lane.layers;
  const around = [];  // by depth
  lane.layers = lane.events.map((event) => {
    const entry = {event, depth: field(event, 4), label: mode.names[event[1]], path: '', parent: null, inside: [], isDropped: false};
    if (entry.depth < 0) return entry;
    around.length = entry.depth;
    entry.parent = around[entry.depth - 1] || null;
    around[entry.depth] = entry;
    if (entry.parent) entry.parent.inside.push(entry);
    if (kinds[event[0]] !== 'forward' || entry.label === 'model') return entry;
    const [name, ...type] = entry.label.split(' ');
    entry.path = entry.parent && entry.parent.path ? entry.parent.path + '.' + name : name;
    entry.label = [entry.path, ...type].join(' ');
    return entry;
  });
  for (const entry of lane.layers) {
    const [only] = entry.inside;
    if (entry.inside.length !== 1 || kinds[entry.event[0]] !== 'forward' || kinds[only.event[0]] !== 'forward') continue;
    (only.label === 'model' ? only : entry).isDropped = true;
  }
  for (const entry of lane.layers) entry.row = entry.depth < 0 ? (category(entry.event[0]) === 'moment' ? kMarks : kFlights) : entry.parent ? entry.parent.row + (entry.parent.isDropped ? 0 : 1) : 0;
  lane.layers = lane.layers.filter((entry) => !entry.isDropped);
  return lane.layers;
}

function describe(mode, lane, event, label) {
  const kind = kinds[event[0]], name = label;
  let text = lane.name + ': ' + kind + (name && name !== kind ? ' ' + name : '');
  if (kind === 'wait' && !hasRanks(mode)) text = `${lane.name}: waits for ${name}`;
  if (kind.startsWith('bucket')) text = `${lane.name}: bucket ${field(event, 6)} ${kind.slice(7)} (${name})`;
  else if (kind === 'collective' || (kind === 'wait' && field(event, 6) >= 0)) text += ' #' + field(event, 6);
  text += `, from ${time(event[2])}`;
  if (event[3] > 0) text += ` to ${time(event[2] + event[3])}: ${time(event[3])}`;
  if (field(event, 5) >= 0) text += ', ' + bytes(event[5]);
  if (kind === 'copy') text += `, ${endName(mode, field(event, 7))}` + (field(event, 8) >= 0 ? ` to ${endName(mode, event[8])}` : '');
  const late = awaited(shownStep(mode), lane, event);
  if (late) text += `; waits for ${late.lane.name}, which launched it last, at ${time(late.at)}`;
  return text;
}

// The last lane to launch the collective that `event` waits for, and when; null where the clocks cannot tell.
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
const kFlights = -1, kMarks = -2;  // rows below those of nested events

// Below the rows of nested events: one row of collectives, and one of marks of buckets.
function rowsOf(layers) {
  const rows = Math.max(1, ...layers.map((layer) => layer.row + 1)), flights = layers.some((layer) => layer.row === kFlights) ? 1 : 0;
  return {rows, flights, marks: layers.some((layer) => layer.row === kMarks) ? 1 : 0};
}

// The place of a text of this width between two edges, where it does not touch an arrow; null if there is none.
function textPlace(left, right, width, arrows) {
  const starts = [left + 4, ...arrows.map((x) => x + 6)].filter((at) => at >= left + 4).sort((a, b) => a - b);
  return starts.find((at) => at + width - 6 < right && arrows.every((x) => x < at - 4 || x > at + width - 4)) ?? null;
}

function eventNode(mode, lane, {event, label}, outer, late, lateX, arrows, x, y, width, free) {
  const classes = category(event[0], outer);
  const text = describe(mode, lane, event, label);
  const node = svg('g', {class: 'event ' + classes, tabindex: -1, role: 'img', 'aria-label': text});
  if (classes === 'moment') {
    const up = kinds[event[0]] === 'bucket done' ? -1 : 1;
    node.append(svg('path', {d: `M${x} ${y + 10 - 5 * up}l4 ${8 * up}h-8z`}));
  } else {
    // A wait is for another rank until the last rank has launched the collective, and then for its bytes.
    const launched = classes === 'waiting' && hasRanks(mode) && field(event, 8) < 0 ? Math.min(late ? lateX : x, x + width) : x + width;
    if (launched > x) node.append(svg('rect', {x, y, width: Math.max(launched - x, 1), height: kRow - 2, rx: 1}));
    if (launched < x + width) node.append(svg('rect', {class: 'bytes', x: launched, y, width: Math.max(x + width - launched, 1), height: kRow - 2, rx: 1}));
    const names = classes !== 'waiting' ? [label] : [...(late ? ['waits for ' + late.lane.name] : hasRanks(mode) ? [] : ['waits for ' + label]), 'wait'];
    for (const name of names) {
      const at = textPlace(x, Math.min(x + width, free), name.length * 6.6 + 6, arrows);
      if (at === null) continue;
      node.append(svg('text', {x: at, y: y + 13}, name));
      break;
    }
  }
  const show = () => { $('details').textContent = text; };
  node.addEventListener('focus', show);
  node.addEventListener('pointerenter', show);
  return node;
}

// `arrows`: the places of those that pass this lane.
function laneNode(mode, lane, top, scale, arrows) {
  const layers = layersOf(mode, lane), {rows, flights, marks} = rowsOf(layers);
  const height = (rows + flights + marks) * kRow;
  const node = svg('g', {class: 'lane-of', role: 'list', 'aria-label': `${mode.name} ${lane.name}`});
  node.append(svg('rect', {class: 'lane', x: kLabel, y: top, width: scale.width - kLabel, height}),
              svg('text', {x: 0, y: top + 14, class: 'lane-name'}, lane.name));
  const outer = [];  // categories of the events around
  const waits = [];
  let first = null;
  for (const layer of layers) {
    const {event, row} = layer;
    if (row >= 0) outer.length = row;
    const around = outer.findLast ? outer.findLast(Boolean) : outer[outer.length - 1];
    const own = category(event[0], around);
    if (row >= 0) outer[row] = ['forward', 'backward', 'optimizer'].includes(own) ? own : around;
    const begin = scale.x(event[2]), end = scale.x(event[2] + event[3]);
    if (end < kLabel || begin > scale.width) continue;
    const left = Math.max(begin, kLabel), right = Math.min(end, scale.width);
    const y = top + (row >= 0 ? row : row === kFlights ? rows : rows + flights) * kRow + 1;
    const late = awaited(shownStep(mode), lane, event);
    if (late) waits.push({...late, y: y + kRow / 2 - 1});
    // A later collective, which may begin while this one is in flight, is drawn over it.
    const next = row === kFlights ? layers.find((each) => each.row === row && each.event[2] > event[2]) : null;
    const drawn = eventNode(mode, lane, layer, around, late, late ? scale.x(late.at) : null, arrows, left, y, right - left, next ? scale.x(next.event[2]) : right);
    node.append(drawn);
    first = first || drawn;
  }
  if (first) first.setAttribute('tabindex', 0);
  return {node, height, waits, middle: top + rows * kRow + kRow / 2};
}

// Who waits for whom: from the last lane to launch a collective, at that time, to each that waited.
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
  const step = shownStep(mode);
  const old = figure.querySelector('.timeline');
  if (old) old.remove();
  const caption = figure.querySelector('figcaption span');
  if (!step) { caption.textContent = ': no such step in the trace'; return; }
  const own = $('one-scale').checked ? span : step.ns;
  const width = Math.max(figure.clientWidth, 280);
  const from = state.from * own, to = state.to * own;
  const scale = {width, x: (ns) => kLabel + (ns - from) / (to - from) * (width - kLabel)};
  const drawing = svg('svg', {class: 'timeline', role: 'group', 'aria-label': `Step ${step.number} of strategy ${mode.name}`});
  let top = kAxis;
  const drawn = new Map();
  const passing = (i) => step.lanes.flatMap((lane, j) => lane.events.map((event) => awaited(step, lane, event))
      .filter((late) => late && (i - j) * (i - step.lanes.indexOf(late.lane)) <= 0).map((late) => scale.x(late.at)));
  for (const [i, lane] of step.lanes.entries()) {
    drawn.set(lane, laneNode(mode, lane, top, scale, passing(i)));
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
  drawOverview(figure.querySelector('.overview'), mode);
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

const stepCount = Math.max(0, ...data.modes.map((mode) => mode.steps.length));

function draw() {
  const span = Math.max(1, ...data.modes.map((mode) => shownStep(mode) ? shownStep(mode).ns : 0));
  data.modes.forEach((mode, i) => drawFigure($('figures').children[i], mode, span));
  const shown = [...new Set(data.modes.filter((mode) => mode.steps.length).map((mode) => mode.shown))];
  const isMedian = data.modes.every((mode) => mode.shown === mode.median);
  $('step-number').textContent = !stepCount ? 'no step was traced' : isMedian ? 'the median step of each strategy'
      : shown.length === 1 ? `step ${shown[0] + 1} of ${stepCount} traced` : 'a step of each strategy';
  $('median').disabled = isMedian;
  $('previous').disabled = data.modes.every((mode) => mode.shown <= 0);
  $('next').disabled = data.modes.every((mode) => mode.shown + 1 >= mode.steps.length);
  drawScaleNote();
  drawArrivals();
  drawStepMatrices();
}
function moveBy(steps) {
  for (const mode of data.modes) mode.shown = Math.min(Math.max(mode.shown + steps, 0), Math.max(mode.steps.length - 1, 0));
  draw();
}
function showMedians() {
  for (const mode of data.modes) mode.shown = mode.median;
  draw();
}

// One scale compares modes; where one is much longer than another, the others would be slivers.
const kScales = 4;
function spread() {
  const known = data.modes.filter((mode) => mode.steps.length).map((mode) => ({name: mode.name, ns: mode.steps[mode.median].ns}));
  known.sort((a, b) => a.ns - b.ns);
  return {short: known[0], long: known[known.length - 1], times: known.length ? known[known.length - 1].ns / Math.max(known[0].ns, 1) : 1};
}
function drawScaleNote() {
  const {short, long, times} = spread();
  const compared = times > kScales ? `A step of ${long.name} (${time(long.ns)}) takes ${times.toFixed(0)} times as long as one of ${short.name} (${time(short.ns)}). ` : '';
  $('scale-note').textContent = data.modes.length < 2 ? ''
      : compared + ($('one-scale').checked ? '' : 'Each timeline has a scale of its own: compare the axes, not the widths.');
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
    const lanes = mode.steps.length ? mode.steps[0].lanes.length : 0;
    const caption = element('figcaption', {}, `${mode.name}, ${lanes} ${hasRanks(mode) ? 'rank' : 'device'}${lanes === 1 ? '' : 's'}`);
    caption.append(element('span', {}));
    const figure = element('figure', {id: 'figure-' + mode.id}, caption, makeOverview(mode));
    addCopyButton(caption, () => figure.querySelector('.timeline'), () => `${data.program}: ${caption.firstChild.data}${caption.children[0].textContent}`);
    $('figures').append(figure);
  }
  const handlers = {previous: () => moveBy(-1), next: () => moveBy(1), median: showMedians, 'zoom-in': () => zoom(0.5),
                    'zoom-out': () => zoom(2), 'pan-left': () => pan(-1), 'pan-right': () => pan(1),
                    whole: () => { Object.assign(state, {from: 0, to: 1}); draw(); }};
  for (const id in handlers) $(id).addEventListener('click', handlers[id]);
  $('one-scale').checked = spread().times <= kScales;
  $('one-scale').addEventListener('change', draw);
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches('textarea, select, input[type=number]')) return;
    const keys = {ArrowLeft: 'previous', ArrowRight: 'next', '+': 'zoom-in', '-': 'zoom-out', 0: 'whole'};
    if (keys[event.key]) handlers[keys[event.key]]();
  });
  window.addEventListener('resize', () => { draw(); drawLosses(); drawMemory(); drawPipelines(); });
}

function makeLegend() {
  const defs = svg('svg', {width: 0, height: 0, 'aria-hidden': 'true'}, svg('defs', {},
    svg('pattern', {id: 'dots', width: 6, height: 6, patternUnits: 'userSpaceOnUse'},
        svg('rect', {class: 'dots', width: 6, height: 6}), svg('circle', {class: 'dot', cx: 3, cy: 3, r: .8})),
    svg('pattern', {id: 'stripes', width: 6, height: 6, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)'},
        svg('rect', {class: 'stripes', width: 6, height: 6}), svg('line', {class: 'stripe', x1: 0, x2: 0, y1: 0, y2: 6}))));
  document.body.prepend(defs);
  const texts = {forward: 'forward', backward: 'backward', optimizer: 'optimizer', communication: 'communication (dotted)',
                 waiting: 'waiting (striped) for a rank or a device', other: 'spans recorded by the program',
                 compute: 'in the strips above a timeline: forward, backward and optimizer together', 'backward kernel': 'a paler colour: single kernels'};
  for (const key in texts) {
    const box = svg('svg', {width: 18, height: 14, 'aria-hidden': 'true', class: key}, svg('rect', {width: 18, height: 14}));
    $('legend').append(element('li', {}, box, texts[key]));
  }
  if (data.modes.some(hasRanks)) $('legend').append(element('li', {}, '\u2195 arrow: from the rank that launched a collective last to a rank that waited for it'));
  $('legend').append(element('li', {}, '\u25b2 bucket ready or launched, \u25bc done'));
}

// {{summary}}

// {{memory}}

// {{pipeline}}

// {{tools}}

$('title').textContent = 'Lockstep: ' + data.program;
$('command').textContent = data.command;
for (const mode of data.modes) $('verdicts').append(element('li', {id: 'verdict-' + mode.id}, element('b', {}, mode.name), ': ' + mode.verdict));
for (const [question, text] of data.answers)
  $('answers').append(element('dt', {}, question), element('dd', /\d k?M?B\b/.test(text) ? {class: 'amount'} : {}, text));
makeCards();
makeLegend();
makeFigures();
makePhases();
makeGuess();
makeMatrices();
makeOverlap();
makeLosses();
makeMemory();
makePipelines();
draw();
drawLosses();
document.documentElement.dataset.ready = 'yes';
