
// ---- the cards at the top, the strip of all steps above each timeline, and the loss curves ----
const sum = (values) => values.reduce((total, value) => total + value, 0);
const listed = (names) => names.length < 2 ? names.join('') : names.slice(0, -1).join(', ') + ' and ' + names[names.length - 1];

// Modes with the same parameter hash, as lists; modes without a hash are left out.
function agreements() {
  const known = data.modes.filter((mode) => mode.hash);
  return [...new Set(known.map((mode) => mode.hash))].map((hash) => known.filter((mode) => mode.hash === hash));
}

// The bytes of a step that pass through the device or rank with the most traffic, sent and received.
function busiest(mode) {
  const through = new Map();
  for (const link of mode.links) for (const end of new Set([link.from, link.to]))
    if (end >= 0) through.set(end, (through.get(end) || 0) + link.bytes / Math.max(mode.step_count, 1));
  return [...through].reduce((most, each) => each[1] > most[1] ? each : most, [-1, 0]);
}

// [bytes done early, bytes, seconds done early, seconds] of all traced steps.
const overlapOf = (mode) => mode.steps.reduce((total, step) => total.map((n, i) => n + step.overlap[i]), [0, 0, 0, 0]);
function overlapText(mode) {
  const [earlyBytes, bytes, earlySeconds, seconds] = overlapOf(mode);
  return bytes ? `${percent(earlySeconds, seconds)} of the time, ${percent(earlyBytes, bytes)} of the bytes` : 'no buckets';
}

// The bytes of one rank's buckets, as launched in the step that is shown; 0 without buckets.
function bucketBytes(mode) {
  const step = shownStep(mode);
  if (!step) return 0;
  return sum(step.lanes[0].events.filter((event) => kinds[event[0]] === 'bucket launched').map((event) => Math.max(field(event, 5), 0)));
}

function hashText(mode, groups) {
  const group = groups.find((each) => each.includes(mode)) || [];
  const others = group.filter((each) => each !== mode).map((each) => each.name);
  if (others.length) return `\u2713 ${mode.hash}, the same as ${listed(others)}`;
  if (groups.length < 2) return mode.hash;
  return mode.hash + (mode.mode === 'single' ? ' differs: it adds the gradients in another order, and so rounds differently'
                                             : ' differs');
}

// The bytes by which a lane's memory at the peak of a step exceeds that at its end.
const aboveEnd = ({memory = [], peak = 0}) => memory.length ? peak - memory[memory.length - 1][1] : 0;

// "2.14 MB": where exactness does not matter.
function size(n) {
  if (n < 1e4) return bytes(n);
  return (n < 1e6 ? (n / 1e3).toFixed(1) + ' kB' : (n / 1e6).toFixed(2) + ' MB') + (Number.isInteger(n) ? '' : ' on average');
}

function card(mode, groups) {
  const step = mode.steps[mode.median], all = sum(mode.links.map((link) => link.bytes)) / Math.max(mode.step_count, 1);
  const [end, most] = busiest(mode);
  const rows = [['time of a step (median)', step ? time(step.ns) : 'no step was traced', 'large'],
                ['bytes moved in a step, over all links', size(all), 'amount']];
  if (end >= 0) rows.push([`through the busiest ${hasRanks(mode) ? 'rank' : 'device'}, ${endName(mode, end)} (sent and received)`, size(most), 'amount']);
  if (hasRanks(mode)) rows.push(['overlap: communication done before the last gradient was ready, mean of all traced steps', overlapText(mode)]);
  if (bucketBytes(mode) && mode.gradient_bytes) rows.push(['gradients', bytes(mode.gradient_bytes), 'amount'], ['buckets: gradients, padding and metadata', bytes(bucketBytes(mode)), 'amount']);
  if (mode.memory) rows.push([`parameters, gradients, optimizer state${mode.memory[3] > 0 ? ', buffers of units' : ''}${hasRanks(mode) ? ' of a rank' : ''}`, size(sum(mode.memory)), 'amount']);
  const above = step ? Math.max(...step.lanes.map(aboveEnd)) : 0;
  if (above > 0) rows.push(['extra memory at the peak of a step', size(above)]);
  if (mode.hash) rows.push(['parameter hash after the run', hashText(mode, groups)]);
  const list = element('dl', {});
  for (const [term, text, kind] of rows) list.append(element('dt', {}, term), element('dd', kind ? {class: kind} : {}, text));
  return element('div', {class: 'card', id: 'card-' + mode.id}, element('h3', {}, mode.name), list);
}

function makeCards() {
  const groups = agreements();
  for (const mode of data.modes) $('cards').append(card(mode, groups));
  const same = groups.filter((group) => group.length > 1).map((group) => `\u2713 ${listed(group.map((mode) => mode.name))} end with the same parameters, bit for bit (bitwise identical).`);
  $('agreement').textContent = same.join(' ');
  $('agreement').hidden = !same.length;
}

// ---- the strip: a bar for each step, as high as it is long, with its shares ----
const sharesOf = (step) => step.lanes.reduce((total, lane) => total.map((n, i) => n + lane.shares[i]), [0, 0, 0, 0]);
const shareClasses = ['compute', 'communication', 'waiting', 'other'];
const kStrip = 40, kStripTop = 14;

// The time at the top of the strip: that of the longest step, but at most three times the median, so that one slow step
// does not flatten the others. With one scale it is that of the mode with most.
function stripTop(mode) {
  const modes = $('one-scale').checked ? data.modes.filter((each) => each.steps.length) : [mode];
  return Math.max(1, ...modes.map((each) => Math.min(Math.max(...each.steps.map((step) => step.ns)), 3 * each.steps[each.median].ns)));
}

function stripBar(mode, step, x, wide, top) {
  const shares = sharesOf(step), all = Math.max(sum(shares), 1), high = Math.min(step.ns / top, 1) * kStrip;
  const bar = svg('g', {'aria-hidden': 'true'}, svg('title', {}, `step ${step.number}: ${time(step.ns)}`));
  let y = kStripTop + kStrip;
  shares.forEach((share, i) => {
    y -= share / all * high;
    bar.append(svg('g', {class: shareClasses[i]}, svg('rect', {x: x + 1, y, width: Math.max(wide - 2, 1), height: share / all * high})));
  });
  if (step.ns > top) bar.append(svg('path', {class: 'cut', d: `M${x + wide / 2 - 6} ${kStripTop + 10}l12 -4m0 4l-12 4`}));
  return bar;
}

function drawOverview(strip, mode) {
  strip.replaceChildren();
  const count = mode.steps.length;
  strip.setAttribute('height', count ? kStripTop + kStrip + 16 : 0);
  if (!count) return;
  const width = Math.max(strip.parentNode.clientWidth, 280), wide = (width - kLabel) / count, top = stripTop(mode);
  const bottom = kStripTop + kStrip, cut = mode.steps.filter((step) => step.ns > top).length;
  strip.setAttribute('viewBox', `0 0 ${width} ${bottom + 16}`);
  const tick = (x, y, anchor, text) => svg('text', {class: 'tick', x, y, 'text-anchor': anchor}, text);
  strip.append(svg('line', {class: 'axis', x1: kLabel, x2: width, y1: kStripTop, y2: kStripTop}),
               svg('line', {class: 'axis', x1: kLabel, x2: width, y1: bottom, y2: bottom}),
               tick(kLabel - 6, kStripTop + 4, 'end', time(top)), tick(kLabel - 6, bottom + 4, 'end', '0'),
               tick(kLabel, bottom + 13, 'start', 'step ' + mode.steps[0].number),
               tick(width, bottom + 13, 'end', 'step ' + mode.steps[count - 1].number));
  if (cut) strip.append(tick(width, 10, 'end', `// ${cut} longer than ${time(top)}, the longest ${time(Math.max(...mode.steps.map((step) => step.ns)))}`));
  mode.steps.forEach((step, i) => strip.append(stripBar(mode, step, kLabel + i * wide, wide, top)));
  strip.append(svg('rect', {class: 'chosen', x: kLabel + mode.shown * wide, y: kStripTop - 1, width: wide, height: kStrip + 2}));
  strip.setAttribute('aria-valuenow', mode.shown + 1);
  strip.setAttribute('aria-valuetext', `step ${mode.steps[mode.shown].number}, ${time(mode.steps[mode.shown].ns)}`);
}

function makeOverview(mode) {
  const strip = svg('svg', {class: 'overview', role: 'slider', tabindex: 0, 'aria-label': `Step of ${mode.name} that is shown`,
                            'aria-valuemin': 1, 'aria-valuemax': Math.max(mode.steps.length, 1)});
  const show = (step) => { mode.shown = Math.min(Math.max(step, 0), Math.max(mode.steps.length - 1, 0)); draw(); };
  strip.addEventListener('click', (event) => {
    const box = strip.getBoundingClientRect(), left = kLabel / Math.max(box.width, 280) * box.width;
    show(Math.floor((event.clientX - box.left - left) / (box.width - left) * mode.steps.length));
  });
  strip.addEventListener('keydown', (event) => {
    const to = {ArrowLeft: mode.shown - 1, ArrowRight: mode.shown + 1, Home: 0, End: mode.steps.length - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    show(to);
  });
  return strip;
}

// ---- losses ----
// Modes with the same losses share a curve.
function curvesOf(modes) {
  const curves = [];
  for (const mode of modes) {
    const known = mode.losses.filter((row) => row[1] !== null), key = JSON.stringify(known.map((row) => [row[0], row[1]]));
    const curve = curves.find((each) => each.key === key);
    if (curve) curve.names.push(mode.name);
    else curves.push({key, known, names: [mode.name]});
  }
  return curves;
}

const losses = {curves: [], drawing: null};

function drawLosses() {
  if (!losses.drawing) return;
  const drawing = losses.drawing, {curves} = losses, points = curves.flatMap((curve) => curve.known);
  const width = Math.max(drawing.parentNode.clientWidth, 280), height = 240, left = 48, bottom = 36, top = 8 + 18 * curves.length;
  const last = Math.max(...points.map((row) => row[0])), most = Math.max(...points.map((row) => row[1]), 1e-9);
  const x = (epoch) => left + (last > 1 ? (epoch - 1) / (last - 1) : 0.5) * (width - left - 10);
  const y = (loss) => top + (1 - loss / most) * (height - bottom - top);
  drawing.replaceChildren();
  drawing.setAttribute('viewBox', `0 0 ${width} ${height}`);
  drawing.setAttribute('height', height);
  for (const part of [0, .25, .5, .75, 1])
    drawing.append(svg('line', {class: 'axis', x1: left, x2: width, y1: y(part * most), y2: y(part * most)}),
                   svg('text', {class: 'tick', x: left - 6, y: y(part * most) + 4, 'text-anchor': 'end'}, (part * most).toPrecision(2)));
  drawing.append(svg('text', {class: 'tick', x: left, y: height - 20}, 1), svg('text', {class: 'tick', x: width - 10, y: height - 20, 'text-anchor': 'end'}, last),
                 svg('text', {class: 'tick', x: (left + width) / 2, y: height - 6, 'text-anchor': 'middle'}, 'epoch; upwards: mean loss of its steps'));
  curves.forEach((curve, i) => {
    const {known} = curve, name = 'curve mode' + (3 - i % 4), line = 10 + 18 * i;
    drawing.append(known.length > 1 ? svg('polyline', {class: name, points: known.map((row) => `${x(row[0])},${y(row[1])}`).join(' ')})
                                    : svg('circle', {class: name, cx: x(known[0][0]), cy: y(known[0][1]), r: 3 + 2 * i}),
                   svg('line', {class: name, x1: left, x2: left + 36, y1: line, y2: line}),
                   svg('text', {x: left + 44, y: line + 4}, listed(curve.names) + (curve.names.length > 1 ? ': the same curve' : '')));
  });
}

function makeLosses() {
  const modes = data.modes.filter((mode) => mode.losses.some((row) => row[1] !== null));
  if (!modes.length) return $('losses').append(element('p', {}, 'No epoch was completed, or the program notes no losses.'));
  losses.curves = curvesOf(modes);
  const tools = element('div', {}), made = element('table', {id: 'loss-table'});
  table(made, ['strategy', 'epochs', "mean loss of the epoch's steps", 'test loss'], modes.map((mode) => {
    const known = mode.losses.filter((row) => row[1] !== null), end = known[known.length - 1];
    return [mode.name, count(end[0]), end[1].toFixed(6), end[2] === null ? 'not a number' : end[2].toFixed(6)];
  }));
  if (losses.curves.some((curve) => curve.known.length > 1)) {  // one point is no curve
    losses.drawing = svg('svg', {class: 'chart', role: 'img', 'aria-label': 'Mean loss of the steps by epoch'});
    addCopyButton(tools, () => losses.drawing, () => `${data.program}: mean loss of the steps by epoch`);
    tools.append(losses.drawing);
  }
  $('losses').append(tools, element('div', {class: 'scroll'}, made));
}
