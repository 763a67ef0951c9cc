
// ---- memory and bytes of sharded runs: the plan, and what was measured ----
const memoryCharts = [];

// The median step of each lane: bytes at its end, and the peak.
function memoryOf(mode, lane) {
  const {memory = [], peak = 0} = mode.steps.length ? mode.steps[mode.median].lanes[lane] || {} : {};
  return [memory.length ? bytes(memory[memory.length - 1][1]) : '?', memory.length ? bytes(peak) : '?'];
}

// The curves of all ranks over the traced steps, each of the same width, and the plan of the rank with the most.
function drawMemory() {
  for (const {drawing, mode} of memoryCharts) {
    const curves = mode.clocks.map((_, rank) => mode.steps.flatMap((step, at) =>
      (step.lanes[rank].memory || []).map(([ns, held]) => [at + ns / Math.max(step.ns, 1), held])));
    const planned = Math.max(...mode.planned.map((plan) => plan[0])), most = Math.max(1, planned, ...curves.flat().map((point) => point[1]));
    const width = Math.max(drawing.parentNode.clientWidth, 280), left = 110, top = 8 + 18 * (curves.length + 1), bottom = top + 160;
    const x = (at) => left + at / mode.steps.length * (width - left), y = (held) => bottom - held / most * 160;
    drawing.replaceChildren();
    drawing.setAttribute('viewBox', `0 0 ${width} ${bottom + 20}`);
    drawing.setAttribute('height', bottom + 20);
    const line = (name, points, at, text) => drawing.append(svg('polyline', {class: name, points: points.map((point) => `${x(point[0])},${y(point[1])}`).join(' ')}),
        svg('line', {class: name, x1: left, x2: left + 36, y1: 10 + 18 * at, y2: 10 + 18 * at}), svg('text', {x: left + 44, y: 14 + 18 * at}, text));
    for (const held of [0, most]) drawing.append(svg('line', {class: 'axis', x1: left, x2: width, y1: y(held), y2: y(held)}),
        svg('text', {class: 'tick', x: left - 6, y: y(held) + 4, 'text-anchor': 'end'}, bytes(held)));
    drawing.append(svg('text', {class: 'tick', x: left, y: bottom + 14}, `steps ${mode.steps[0].number} to ${mode.steps[mode.steps.length - 1].number}`));
    line('curve mode3', [[0, planned], [mode.steps.length, planned]], 0, 'planned, without activations');
    curves.forEach((curve, rank) => line('curve mode' + rank % 3, curve, rank + 1, `rank ${mode.clocks[rank].rank}`));
  }
}

// The model's memory of all modes side by side, planned, and by how much the memory of the median step exceeds its end.
function makeModelMemory() {
  const modes = data.modes.filter((mode) => mode.memory), made = element('table', {id: 'model-memory'});
  if (!modes.length) return;
  table(made, ['strategy', 'parameters', 'gradients', 'optimizer state', 'buffers of units', 'sum', 'measured: peak minus end of a step'], modes.map((mode) => {
    const above = mode.steps.length ? Math.max(...mode.steps[mode.median].lanes.map(aboveEnd)) : 0;
    return [mode.name, ...mode.memory.map(bytes), bytes(sum(mode.memory)), above > 0 ? bytes(above) : '?'];
  }));
  $('memory').append(element('h3', {}, 'Model memory: of the rank with most, or of the first device'), element('div', {class: 'scroll'}, made));
  $('memory').hidden = false;
}

function makeMemory() {
  makeModelMemory();
  for (const mode of data.modes.filter((each) => (each.planned || []).length)) {
    const sent = (rank, phase) => bytes(sum(mode.links.filter((link) => link.from === rank && link.phase === phase).map((link) => link.bytes)) / Math.max(mode.step_count, 1));
    const made = element('table', {id: 'memory-' + mode.id});
    table(made, ['rank', 'memory: planned', 'at the end of a step', 'peak', 'parameters sent in a step: planned', 'measured', 'gradients sent in a step: planned', 'measured'],
          mode.planned.map(([held, parameters, gradients], i) => [`rank ${mode.clocks[i].rank}`, bytes(held), ...memoryOf(mode, i),
                                                                 bytes(parameters), sent(mode.clocks[i].rank, 'parameters'), bytes(gradients), sent(mode.clocks[i].rank, 'gradients')]));
    const drawing = svg('svg', {class: 'chart', role: 'img', 'aria-label': `${mode.name}: memory of each rank over the traced steps`});
    $('memory').append(element('h3', {}, mode.name), element('div', {class: 'scroll'}, made));
    $('memory').hidden = false;
    if (!mode.steps.length) continue;
    $('memory').append(drawing);
    memoryCharts.push({drawing, mode});
  }
  drawMemory();
}
