
// ---- pipelines: what the schedule would take with the measured times, above what the ranks did ----
const pipelineCharts = [];
const kActions = [['F', 'forward', 'forward'], ['I', 'gradients of inputs', 'backward'],
                  ['W', 'gradients of parameters', 'backward kernel'], ['B', 'backward', 'backward']];  // letter, text, style
const share = (idle) => (100 * idle).toFixed(1) + ' %';

// An action is [kind, stage, micro-batch, begin, duration].
function actionNode(rank, row, [kind, stage, micro, begin, took], x, y) {
  const [letter, what, style] = kActions[kind], left = x(begin), width = Math.max(x(begin + took) - left, 1);
  const text = `${rank}, ${row}: ${stage}${letter}${micro}, ${what} of stage ${stage}, micro-batch ${micro}, from ${time(begin)} to ${time(begin + took)}: ${time(took)}`;
  const node = svg('g', {class: 'event ' + style, role: 'img'}, svg('title', {}, text),
                   svg('rect', {x: left, y, width, height: kRow - 2, rx: 1}));
  if (width > 7 * String(micro).length + 4) node.append(svg('text', {x: left + width / 2, y: y + 13, 'text-anchor': 'middle'}, micro));
  return node;
}

function drawPipelines() {
  for (const {drawing, pipeline} of pipelineCharts) {
    const most = Math.max(1, pipeline.planned_ns, pipeline.measured_ns), width = Math.max(drawing.parentNode.clientWidth, 280);
    const x = (ns) => kLabel + ns / most * (width - kLabel);
    drawing.replaceChildren();
    let top = kAxis;
    for (const rank of pipeline.ranks) {
      drawing.append(svg('text', {x: 0, y: top + 12}, `${rank.name}: idle ${share(rank.planned_idle)} planned, ${share(rank.measured_idle)} measured`));
      for (const row of ['planned', 'measured']) {
        top += kRow;
        const node = svg('g', {role: 'group', 'aria-label': `${rank.name}, ${row}`}, svg('rect', {class: 'lane', x: kLabel, y: top, width: width - kLabel, height: kRow - 2}),
                         svg('text', {class: 'tick', x: 0, y: top + 13}, row));
        node.append(...rank[row].map((action) => actionNode(rank.name, row, action, x, top)));
        drawing.append(node);
      }
      top += kRow + kGap;
    }
    const tick = niceStep(most * (width < 600 ? 2 : 1));
    for (let at = 0; at <= most; at += tick) {
      drawing.prepend(svg('line', {class: 'axis', x1: x(at), x2: x(at), y1: kAxis - 6, y2: top - kGap}),
                      svg('text', {class: 'tick', x: x(at), y: 12, 'text-anchor': x(at) > width - 40 ? 'end' : at === 0 ? 'start' : 'middle'}, time(at)));
    }
    drawing.setAttribute('viewBox', `0 0 ${width} ${top}`);
    drawing.setAttribute('height', top);
  }
}

function makePipelines() {
  for (const mode of data.modes.filter((each) => each.pipeline)) {
    const {pipeline} = mode;
    const text = `${mode.name}: predicted ${time(pipeline.planned_ns)}, idle ${share(pipeline.planned_idle)}; measured ${time(pipeline.measured_ns)}, idle ${share(pipeline.measured_idle)}`;
    const drawing = svg('svg', {class: 'chart', role: 'group', 'aria-label': `${mode.name}: planned and measured lanes of each rank`});
    const caption = element('figcaption', {}, text);
    addCopyButton(caption, () => drawing, () => `${data.program}: ${text}`);
    $('pipelines').append(element('figure', {id: 'pipeline-' + mode.id}, caption, drawing));
    $('pipelines').hidden = false;
    pipelineCharts.push({drawing, pipeline});
  }
  drawPipelines();
}
