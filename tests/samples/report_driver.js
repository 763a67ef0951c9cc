'use strict';
// Uses the report of report_data.json as a reader would, and writes failed checks to an attribute of <html>.
(async () => {
  const failed = [];
  const check = (what, condition) => { if (!condition) failed.push(what); };
  const plain = (node) => node.textContent.replaceAll('\u00a0', ' ');
  const rowsOf = (id) => [...document.querySelectorAll(`#${id} tr`)].map((row) => [...row.children].map(plain).join(' '));
  const labels = (text) => document.querySelectorAll(`#figure-ddp .event[aria-label*="${text}"]`).length;
  const clickAndWait = async (button) => { button.click(); await new Promise((done) => setTimeout(done)); };
  const setClipboard = (value) => Object.defineProperty(navigator, 'clipboard', {value, configurable: true});
  const figure = document.querySelector('#figure-ddp'), copy = figure.querySelector('.copy'), text = figure.querySelector('textarea');

  // The summary: times, bytes, overlap, and which modes agree.
  const textOf = (selector) => plain(document.querySelector(selector));
  const has = (selector, ...parts) => parts.every((part) => textOf(selector).includes(part));
  check('the card of ddp', has('#card-ddp', '1.00 ms', '600 B', 'through the busiest rank, rank 0 (sent and received)400 B', '30 % of the time, 25 % of the bytes',
      'gradients124 B', 'buckets: gradients, padding and metadata150 B', '\u2713 00000000000000bb, the same as dp'));
  check('the card of single', has('#card-single', '11.0 us', '00000000000000aa differs: it adds the gradients in another order'));
  check('who agrees', has('#agreement', '\u2713 dp and ddp end with the same parameters'));
  check('answers', [...document.querySelectorAll('#answers > *')].map(plain).join('|') ===
      'Why is ddp slower than dp?|Because it is <b>made up</b>.|How much memory?|3.50 MB');
  check('memory in the card', has('#card-ddp', 'parameters, gradients, optimizer state of a rank496 B', 'extra memory at the peak of a step200 B') &&
      !textOf('#card-single').includes('peak'));
  check('numbers stay with their units', document.querySelector('#answers dd:last-child').textContent === '3.50\u00a0MB' &&
      document.querySelector('#card-single .large').textContent === '11.0\u00a0us');
  check('words are explained', ['lane', 'traffic counters', 'P, n'].every((word) => [...document.querySelectorAll('#words dt')].some((each) => each.textContent === word)));

  // Each mode starts at its median step, with a scale of its own where modes differ much.
  const stepOf = (mode) => textOf(`#figure-${mode} figcaption span`);
  const single = document.querySelector('#figure-single'), oneScale = document.querySelector('#one-scale');
  const widthOf = () => single.querySelector('.event.backward rect').getBBox().width;
  check('median steps', stepOf('single') === ': step 9, 11.0 us' && stepOf('ddp') === ': step 9, 1.00 ms' && textOf('#step-number') === 'the median step of each strategy');
  check('own scales', !oneScale.checked && widthOf() > 80 && has('#scale-note', '91 times as long as one of single', 'a scale of its own'));
  oneScale.click();
  const tops = () => ['single', 'dp', 'ddp'].map((mode) => textOf(`#figure-${mode} .overview .tick`));
  check('one scale', widthOf() < 20 && tops().join() === '1.00 ms,1.00 ms,1.00 ms' && !textOf('#scale-note').includes('own'));
  oneScale.click();

  check('own scales of the strips', tops().join() === '33.0 us,1.00 ms,1.00 ms');

  // Layers by path and type; a layer that only encloses one other is not drawn.
  const drawn = [...single.querySelectorAll('.event')].map((each) => each.getAttribute('aria-label').split(',')[0]);
  check('layers', drawn.join('|') === 'cpu:0: forward body Sequential|cpu:0: forward body.0 Flatten|cpu:0: forward body.1 Linear|cpu:0: backward');

  // The strip of all steps: an axis with units, one slow step cut off, and the keyboard.
  const strip = single.querySelector('.overview');
  check('the axis of the strip', ['33.0 us', '0', 'step 7', 'step 10'].every((text) => [...strip.querySelectorAll('text')].some((each) => each.textContent === text)));
  check('a slow step is cut off', strip.querySelectorAll('.cut').length === 1 && strip.textContent.includes('1 longer than 33.0 us, the longest 900.0 us'));
  check('a slider', strip.getAttribute('role') === 'slider' && strip.getAttribute('aria-valuetext') === 'step 9, 11.0 us' && strip.tabIndex === 0);
  strip.dispatchEvent(new KeyboardEvent('keydown', {key: 'Home', bubbles: true}));
  check('the strip changes one mode', stepOf('single').startsWith(': step 7') && stepOf('ddp').startsWith(': step 9') && textOf('#step-number') === 'step 1 of 4 traced');
  const box = strip.getBoundingClientRect();
  strip.dispatchEvent(new MouseEvent('click', {clientX: box.right - 10, clientY: box.top + 20, bubbles: true}));
  check('a click on the last bar', stepOf('single').startsWith(': step 10'));
  document.querySelector('#median').click();
  check('back to the median', stepOf('single').startsWith(': step 9') && document.querySelector('#median').disabled);

  // Bytes: sums by rank with their formula, and the links on request.
  const gradients = '#phases td[data-mode="ddp"][data-phase="gradients"]';
  check('sums by rank', has(gradients, 'rank 0 sends: 200 B', '= 2 (n-1)/n times the 150 B of buckets, sent by each rank, with n = 3', 'all 6 links', 'The all-reduce is direct'));
  check('links are folded', !document.querySelector(gradients + ' details').open && document.querySelectorAll(gradients + ' details .link').length === 6);
  check('gradients and buckets', has(gradients, 'Gradients: 124 B, buckets: 150 B.'));
  check('averages', has('#phases td[data-mode="dp"][data-phase="gradients"]', '124.5 B on average', '= (n-1) P, with n = 2 and P = 124 B'));
  const cells = [...document.querySelectorAll('#phases td')];
  check('all modes fit on the screen', cells.every((cell) => cell.getBoundingClientRect().right <= innerWidth && cell.getBoundingClientRect().width > 0));
  check('stacked cells name their mode', innerWidth > 700 || cells.every((cell) => getComputedStyle(cell, '::before').content.includes('data-name') || getComputedStyle(cell, '::before').content.includes(cell.dataset.name)));

  // Planned and measured memory and bytes, and a curve for each rank with samples.
  check('planned and measured', rowsOf('memory-ddp').slice(1).join('|') === 'rank 0 400 B 1,000 B 1,200 B 10 B 0 B 200 B 200 B|' +
      'rank 1 500 B ? ? 10 B 0 B 210 B 200 B|rank 2 400 B ? ? 10 B 0 B 200 B 200 B');
  const held = document.querySelector('#memory .chart');
  check('memory over time', !document.querySelector('#memory').hidden && held.querySelectorAll('polyline').length === 4 &&
      has('#memory .chart', 'planned, without activations', 'rank 2', '1,000 B', 'steps 9 to 10'));
  check('memory of the model', rowsOf('model-memory').slice(1).join('|') === 'ddp 124 B 124 B 248 B 0 B 496 B 200 B');
  check('no memory without a plan', document.querySelectorAll('#memory table').length === 2);

  // Planned above measured lanes of a pipeline, on one scale, with the idle share of both.
  const lanes = document.querySelector('#pipeline-ddp'), boxes = (row) => [...lanes.querySelectorAll(`[aria-label="rank 0, ${row}"] .event rect`)].map((each) => each.getBBox());
  const [planned, measured] = [boxes('planned'), boxes('measured')];
  check('pipelines', !document.querySelector('#pipelines').hidden && document.querySelectorAll('#pipelines figure').length === 1 &&
      has('#pipeline-ddp figcaption', 'ddp: predicted 800.0 us, idle 25.0 %; measured 1.00 ms, idle 40.0 %') &&
      has('#pipeline-ddp svg', 'rank 0: idle 25.0 % planned, 50.0 % measured', 'rank 1: idle 25.0 % planned, 30.0 % measured',
          'rank 0, measured: 0W0, gradients of parameters of stage 0, micro-batch 0, from 800.0 us to 1.00 ms: 200.0 us'));
  check('planned above measured', planned.length === 3 && measured.length === 3 && planned[0].y < measured[0].y &&
      Math.abs(planned[0].x - measured[0].x) < 1 && Math.abs(planned[0].width - measured[0].width) < 1 && planned[2].x < measured[2].x);
  check('lanes of a pipeline fit', lanes.querySelector('svg').getBoundingClientRect().right <= innerWidth);

  // Figures: texts that arrows do not cross, one curve for equal losses in the page's text size, and colours apart.
  const bounds = (node) => node.getBoundingClientRect(), texts0 = [...document.querySelectorAll('#figure-ddp .event text')].map(bounds);
  check('marks of buckets touch no text', [...document.querySelectorAll('#figure-ddp .event.moment path')].map(bounds).every((mark) => texts0.every((each) =>
      mark.right < each.left || mark.left > each.right || mark.bottom < each.top || mark.top > each.bottom)));
  check('arrows cross no text', [...document.querySelectorAll('#figure-ddp .arrow line')].map(bounds).every((line) => texts0.every((each) =>
      line.left < each.left || line.left > each.right || line.bottom < each.top || line.top > each.bottom)));
  const chart = document.querySelector('#losses .chart');
  check('curves', chart.querySelectorAll('polyline').length === 2 && chart.textContent.includes('dp and ddp: the same curve') && chart.textContent.includes('epoch'));
  check('text size', Math.abs(chart.getScreenCTM().a - 1) < 0.1);
  const light = (selector) => {
    const parts = getComputedStyle(document.querySelector(selector)).fill.match(/[\d.]+/g).slice(0, 3).map((n) => n / 255);
    const [r, g, b] = parts.map((n) => n <= 0.03928 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const forward = light('#legend .forward rect'), backward = light('#legend .backward rect');
  check('forward and backward differ in brightness', Math.max(forward / backward, backward / forward) >= 3);
  document.documentElement.dataset.theme = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';

  // Which rank waits for which, and the bytes of the step: the median step, then the next, where the clocks differ too
  // much to tell.
  check('two arrows', figure.querySelectorAll('.arrow').length === 2);
  check('two waits are explained', labels('; waits for rank 2, which launched it last, at 700.0 us') === 2);
  const parts = [...figure.querySelector('.event.waiting').querySelectorAll('rect')].map((each) => each.getBBox());
  // Rank 0 waits from 310 to 800 us, and the last rank launches at 700.
  check('a wait is striped until the last launch, then dotted', parts.length === 2 && Math.abs(parts[0].width / parts[1].width - 3.9) < 0.1);
  check('waits say for whom', [...figure.querySelectorAll('.waiting text')].filter((each) => each.textContent === 'waits for rank 2').length === (innerWidth > 700 ? 2 : 1));
  check('bytes of a dp step', rowsOf('step-matrix-dp').join('|') ===
      'from \\ to cpu:0 cpu:1 sent|cpu:0 0 124 124|cpu:1 124 0 124|received 124 124 248');
  check('bytes of a ddp step', rowsOf('step-matrix-ddp').join('|') ===
      'from \\ to rank 0 rank 1 rank 2 sent|rank 0 0 ? ? 248|rank 1 ? 0 ? 252|rank 2 ? ? 0 244|received ? ? ? 744');
  check('overlap of the run', rowsOf('overlap').slice(1).map((row) => row.split(' 0 ns')[0]).join('|') ===
      'single no buckets|dp no buckets|ddp 30 % of the time, 25 % of the bytes');
  check('bytes of the run', rowsOf('matrix-ddp')[4] === 'received 2,000 2,000 2,000 6,000');

  // The figure as SVG, first without a clipboard.
  setClipboard(undefined);
  check('the button takes the focus', (copy.focus(), document.activeElement === copy));
  await clickAndWait(copy);
  check('the text is shown, selected and has the focus', !text.hidden && text.offsetHeight > 0 && text.readOnly && document.activeElement === text &&
      text.selectionStart === 0 && text.selectionEnd === text.value.length);
  const parsed = new DOMParser().parseFromString(text.value, 'image/svg+xml'), root = parsed.documentElement;
  check('the text is XML', !parsed.querySelector('parsererror') && root.localName === 'svg' && root.namespaceURI === 'http://www.w3.org/2000/svg');
  check('xmlns', text.value.startsWith('<svg xmlns="http://www.w3.org/2000/svg"'));
  check('a title', root.firstElementChild.localName === 'title' && root.firstElementChild.textContent === 'fixture: ddp, 3 ranks: step 9, 1.00 ms');
  const texts = [...parsed.querySelectorAll('text')];
  for (const lane of ['rank 0', 'rank 1', 'rank 2']) check('the text ' + lane, texts.some((each) => each.textContent === lane));
  check('events keep their labels', [...parsed.querySelectorAll('title')].some((each) => each.textContent.includes('waits for rank 2')));
  check('nothing of the page is needed', !/class=|style=|var\(|aria-/.test(text.value) && [...text.value.matchAll(/url\(#(\w+)\)/g)].every((each) => root.querySelector('#' + each[1])));
  check('patterns and colours', text.value.includes('url(#stripes)') && texts.every((each) => each.closest('[fill^="rgb"]') && each.closest('[font-size]')));
  text.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true}));
  check('Escape closes', text.hidden && document.activeElement === copy);
  let copied = '';
  setClipboard({writeText: async (value) => { copied = value; }});
  await clickAndWait(copy);
  check('to the clipboard', copied === text.value && text.hidden && figure.querySelector('[role=status]').textContent === 'copied');
  await clickAndWait(document.querySelector('#figure-dp .copy'));
  check('names from outside are text', copied.includes('model &lt;&amp;&gt;') && !new DOMParser().parseFromString(copied, 'image/svg+xml').querySelector('parsererror'));
  await clickAndWait(document.querySelector('#losses .copy'));
  check('curves', copied.includes('<polyline') && />dp and ddp: the same curve<\/text>/.test(copied) && copied.includes('mean loss of the steps by epoch') && /stroke-dasharray="5px, 3px"/.test(copied));

  // Guessing mode: numbers are hidden only on request, and appear one by one.
  const cell = (mode, phase) => document.querySelector(`#phases td[data-mode="${mode}"][data-phase="${phase}"]`);
  const isSeen = (mode, phase) => getComputedStyle(cell(mode, phase).querySelector('b')).visibility === 'visible';
  check('numbers at first', isSeen('dp', 'parameters') && document.querySelector('#guess').offsetHeight === 0);
  document.querySelector('#guessing').click();
  const isHidden = (selector) => [...document.querySelectorAll(selector)].every((each) => getComputedStyle(each).visibility === 'hidden');
  check('hidden on demand', !isSeen('dp', 'parameters') && !isSeen('ddp', 'gradients') && !isSeen('ddp', 'parameters') &&
      isHidden('#phases .formula') && isHidden('#phases details') && isHidden('.card .amount') && isHidden('#answers dd:last-child') && !isHidden('#answers dd') &&
      getComputedStyle(document.querySelector('#matrices td')).visibility === 'hidden' && document.querySelector('#guess').offsetHeight > 0);
  check('questions', [...document.querySelectorAll('#question option')].map((each) => each.textContent).join('|') ===
      'dp: parameters, all links|dp: gradients, all links|ddp: gradients, all links');
  document.querySelector('#compare').click();
  check('no number', document.querySelector('#answer').textContent === 'Please type a number of bytes.' && !isSeen('dp', 'parameters'));
  const guessed = document.querySelector('#guessed');
  guessed.value = '248';
  guessed.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}));
  check('keys typed there change nothing else', document.querySelector('#step-number').textContent.startsWith('the median step'));
  guessed.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}));
  check('the answer', document.querySelector('#answer').textContent === 'dp, parameters: you said 248 B, measured are 124 B a step: off by a factor of 2.00');
  check('one is shown', isSeen('dp', 'parameters') && !isSeen('dp', 'gradients'));
  document.querySelector('#question').value = 2;
  guessed.value = '600';
  document.querySelector('#compare').click();
  check('right', document.querySelector('#answer').textContent.endsWith('measured are 600 B a step: right') && isSeen('ddp', 'gradients'));
  document.querySelector('#guessing').click();
  check('all are back', isSeen('dp', 'gradients') && document.querySelector('#guess').offsetHeight === 0);

  document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}));
  check('uncertain: no arrows', figure.querySelectorAll('.arrow').length === 0 && labels('waits for') === 0);
  check('bytes of the next step', rowsOf('step-matrix-dp')[3] === 'received 0 120 120' && rowsOf('step-matrix-ddp')[1] === 'rank 0 0 ? ? 248');
  document.documentElement.dataset.checked = failed.length ? 'failed: ' + failed.join('; ') : 'everything';
})().catch((error) => { document.documentElement.dataset.checked = 'failed: ' + error; });
