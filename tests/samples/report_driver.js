'use strict';
// Uses the report of report_data.json as a reader would, and writes failed checks to an attribute of <html>.
(async () => {
  const failed = [];
  const check = (what, condition) => { if (!condition) failed.push(what); };
  const rowsOf = (id) => [...document.querySelectorAll(`#${id} tr`)].map((row) => [...row.children].map((cell) => cell.textContent).join(' '));
  const labels = (text) => document.querySelectorAll(`#figure-ddp .event[aria-label*="${text}"]`).length;
  const clickAndWait = async (button) => { button.click(); await new Promise((done) => setTimeout(done)); };
  const setClipboard = (value) => Object.defineProperty(navigator, 'clipboard', {value, configurable: true});
  const figure = document.querySelector('#figure-ddp'), copy = figure.querySelector('.copy'), text = figure.querySelector('textarea');

  // Which rank waits for which, and the bytes of the step: the first step, then the second, where the clocks differ too
  // much to tell.
  check('two arrows', figure.querySelectorAll('.arrow').length === 2);
  check('two waits are explained', labels('; waits for rank 2, which came last, at 700.0 \u00b5s') === 2);
  check('waits say for whom', [...figure.querySelectorAll('.waiting text')].filter((each) => each.textContent === 'waits for rank 2').length === 2);
  check('bytes of a dp step', rowsOf('step-matrix-dp').join('|') ===
      'from \\ to cpu:0 cpu:1 sent|cpu:0 0 124 124|cpu:1 124 0 124|received 124 124 248');
  check('bytes of a ddp step', rowsOf('step-matrix-ddp').join('|') ===
      'from \\ to rank 0 rank 1 rank 2 sent|rank 0 0 ? ? 248|rank 1 ? 0 ? 252|rank 2 ? ? 0 244|received ? ? ? 744');
  check('overlap of the run', rowsOf('overlap').slice(1).map((row) => row.split(' 0 ns')[0]).join('|') ===
      'dp no buckets|ddp 25 % of the bytes, 30 % of the time');
  check('bytes of the run', rowsOf('matrix-ddp')[4] === 'received 1,000 1,000 1,000 3,000');

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
  check('curves', copied.includes('<polyline') && />ddp<\/text>/.test(copied) && copied.includes('training loss by epoch') && /stroke-dasharray="2px, 3px"/.test(copied));

  // Guessing mode: numbers are hidden only on request, and appear one by one.
  const cell = (mode, phase) => document.querySelector(`#phases td[data-mode="${mode}"][data-phase="${phase}"]`);
  const isSeen = (mode, phase) => getComputedStyle(cell(mode, phase).querySelector('b')).visibility === 'visible';
  check('numbers at first', isSeen('dp', 'parameters') && document.querySelector('#guess').offsetHeight === 0);
  document.querySelector('#guessing').click();
  check('hidden on demand', !isSeen('dp', 'parameters') && !isSeen('ddp', 'gradients') && isSeen('ddp', 'parameters') &&
      getComputedStyle(document.querySelector('#matrices td')).visibility === 'hidden' && document.querySelector('#guess').offsetHeight > 0);
  check('questions', [...document.querySelectorAll('#question option')].map((each) => each.textContent).join('|') ===
      'dp: parameters, all links|dp: gradients, all links|ddp: gradients, all links');
  document.querySelector('#compare').click();
  check('no number', document.querySelector('#answer').textContent === 'Please type a number of bytes.' && !isSeen('dp', 'parameters'));
  const guessed = document.querySelector('#guessed');
  guessed.value = '248';
  guessed.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}));
  check('keys typed there change nothing else', document.querySelector('#step-number').textContent.startsWith('step 1 of 2'));
  guessed.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}));
  check('the answer', document.querySelector('#answer').textContent === 'dp, parameters: you said 248 B, measured are 124 B a step: off by a factor of 2.00');
  check('one is shown', isSeen('dp', 'parameters') && !isSeen('dp', 'gradients'));
  document.querySelector('#question').value = 2;
  guessed.value = '300';
  document.querySelector('#compare').click();
  check('right', document.querySelector('#answer').textContent.endsWith('measured are 300 B a step: right') && isSeen('ddp', 'gradients'));
  document.querySelector('#guessing').click();
  check('all are back', isSeen('dp', 'gradients') && document.querySelector('#guess').offsetHeight === 0);

  document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}));
  check('uncertain: no arrows', figure.querySelectorAll('.arrow').length === 0 && labels('waits for') === 0);
  check('bytes of the next step', rowsOf('step-matrix-dp')[3] === 'received 0 120 120' && rowsOf('step-matrix-ddp')[1] === 'rank 0 0 ? ? 248');
  document.documentElement.dataset.checked = failed.length ? 'failed: ' + failed.join('; ') : 'everything';
})().catch((error) => { document.documentElement.dataset.checked = 'failed: ' + error; });
