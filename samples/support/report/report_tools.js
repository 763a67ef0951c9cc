
// ---- second part: bytes by link, who came last, guessing, and figures as SVG ----

const endsOf = (mode) => [...Array(1 + Math.max(...mode.links.map((link) => Math.max(link.from, link.to)))).keys()];

// `moved`: [from, to, bytes], with -1 for a receiver that is not known.
function fillMatrix(target, mode, moved) {
  const ends = endsOf(mode);
  const sum = (from, to) => moved.filter((each) => (from < 0 || each[0] === from) && (to < 0 || each[1] === to))
                                 .reduce((total, each) => total + each[2], 0);
  const number = (n) => element('td', {class: 'number'}, count(n));
  const isKnown = moved.every((each) => each[1] >= 0);
  const cell = (from, to) => isKnown || from === to ? number(sum(from, to)) : element('td', {class: 'number'}, '?');
  table(target, ['from \\ to', ...ends.map((end) => endName(mode.mode, end)), 'sent'],
        [...ends.map((from) => [endName(mode.mode, from), ...ends.map((to) => cell(from, to)), number(sum(from, -1))]),
         ['received', ...ends.map((to) => cell(-1, to)), number(sum(-1, -1))]]);
}

const modesThatMove = () => data.modes.filter((mode) => mode.links.length > 0);

function makeMatrices() {
  for (const mode of modesThatMove()) {
    const made = element('table', {id: 'matrix-' + mode.mode});
    fillMatrix(made, mode, mode.links.map((link) => [link.from, link.to, link.bytes]));
    $('matrices').append(element('div', {class: 'side'},
        element('div', {}, element('h3', {}, `${mode.mode}: bytes in ${count(mode.step_count)} steps`), made),
        element('div', {id: 'step-' + mode.mode})));
  }
  if (!$('matrices').children.length) $('matrices').append(element('p', {}, 'Nothing was moved.'));
}

// What the events of the step that is shown say: copies name both ends, collectives their rank.
function drawStepMatrices() {
  for (const mode of modesThatMove()) {
    const step = mode.steps[state.step], place = $('step-' + mode.mode), ends = endsOf(mode);
    place.replaceChildren();
    if (!step) continue;
    const moved = [];
    for (const event of step.lanes.flatMap((lane) => lane.events)) {
      const kind = kinds[event[0]], sent = field(event, 5), from = field(event, 7), to = field(event, 8);
      if (sent <= 0 || from < 0) continue;
      if (kind === 'copy' && to >= 0) moved.push([from, to, sent]);
      if (kind === 'collective') moved.push([from, ends.length === 2 ? 1 - from : -1, sent]);
    }
    const made = element('table', {id: 'step-matrix-' + mode.mode});
    fillMatrix(made, mode, moved);
    place.append(element('h3', {}, `${mode.mode}: bytes in step ${step.number}`), made);
  }
}

// Of the step that is shown.
function drawArrivals() {
  $('arrivals').replaceChildren();
  for (const mode of data.modes) {
    const step = mode.steps[state.step];
    if (!step || !step.arrivals.length) continue;
    const made = element('table', {id: 'arrivals-' + mode.mode});
    table(made, ['collective', 'last', 'after the first'], step.arrivals.map((each) => [
      `${each.name} #${each.id}`, each.certain ? 'rank ' + each.last : 'together, as far as the clocks tell', time(each.late)]));
    $('arrivals').append(element('h3', {}, `${mode.mode}, step ${step.number}: who came last`), element('div', {class: 'scroll'}, made));
  }
}

// ---- guessing: numbers are hidden on the screen only while it is asked for, and each until it was guessed ----
function makeGuess() {
  const questions = modesThatMove().flatMap((mode) => [...new Set(mode.links.map((link) => link.phase))].map((phase) => {
    const all = mode.links.filter((link) => link.phase === phase).reduce((sum, link) => sum + link.bytes, 0);
    return {mode, phase, measured: all / Math.max(mode.step_count, 1)};
  }));
  $('offer').hidden = !questions.length;
  const isAsked = (cell) => (each) => cell.dataset.mode === each.mode.mode && cell.dataset.phase === each.phase;
  const cells = [...$('phases').querySelectorAll('td')];
  for (const cell of cells) cell.classList.toggle('told', !questions.some(isAsked(cell)));
  questions.forEach((each, i) => $('question').append(element('option', {value: i}, `${each.mode.mode}: ${each.phase}, all links`)));
  $('guessing').addEventListener('change', () => {
    document.body.classList.toggle('guessing', $('guessing').checked);
    $('guess').hidden = !$('guessing').checked;
  });
  $('question').addEventListener('change', () => { $('answer').textContent = ''; });
  const compare = () => {
    const guess = $('guessed').valueAsNumber, question = questions[$('question').value], {mode, phase, measured} = question;
    if (Number.isNaN(guess)) { $('answer').textContent = 'Please type a number of bytes.'; return; }
    const ratio = guess > 0 && measured > 0 ? Math.max(guess / measured, measured / guess) : Infinity;
    $('answer').textContent = `${mode.mode}, ${phase}: you said ${bytes(guess)}, measured are ${bytes(measured)} a step` +
        (ratio < 1.005 ? ': right' : ratio < Infinity ? `: off by a factor of ${ratio.toFixed(ratio < 10 ? 2 : 0)}` : '');
    for (const cell of cells) if (isAsked(cell)(question)) cell.classList.add('told');
  };
  $('compare').addEventListener('click', compare);
  $('guessed').addEventListener('keydown', (event) => { if (event.key === 'Enter') compare(); });
}

// ---- a figure as SVG ----
const inherited = ['fill', 'fill-opacity', 'stroke', 'stroke-width', 'stroke-dasharray', 'font-family', 'font-size'];

// A copy of `node` that looks the same without the page: its style as attributes, its label as a title.
function standing(node, around) {
  const copy = node.cloneNode(false);
  if (node.nodeType !== Node.ELEMENT_NODE) return copy;
  const style = getComputedStyle(node);
  for (const name of inherited) {
    const value = style.getPropertyValue(name);
    if (!around || value !== around.getPropertyValue(name)) copy.setAttribute(name, value.replaceAll('"', ''));
  }
  for (const name of ['class', 'role', 'tabindex', 'aria-label', 'aria-hidden']) copy.removeAttribute(name);
  if (around && node.hasAttribute('aria-label')) copy.append(svg('title', {}, node.getAttribute('aria-label')));
  copy.append(...[...node.childNodes].map((child) => standing(child, style)));
  return copy;
}

function standalone(drawing, title) {
  const [, , width, height] = drawing.getAttribute('viewBox').split(' ');
  const made = standing(drawing, null);
  made.setAttribute('width', width);
  made.setAttribute('height', height);
  made.prepend(svg('title', {}, title), standing(document.querySelector('defs'), null),
               svg('rect', {width, height, fill: getComputedStyle(document.body).backgroundColor}));
  return new XMLSerializer().serializeToString(made) + '\n';
}

// Puts the figure on the clipboard, or, where a page may not (from a file, in some browsers), shows its text selected.
function addCopyButton(place, drawing, title) {
  const button = element('button', {type: 'button', class: 'copy'}, 'copy as SVG');
  const said = element('span', {role: 'status'}), text = element('textarea', {readonly: '', rows: 4, hidden: '', 'aria-label': 'The figure as SVG'});
  const close = () => { text.hidden = true; said.textContent = ''; button.focus(); };
  button.addEventListener('click', async () => {
    text.value = standalone(drawing(), title());
    try {
      await navigator.clipboard.writeText(text.value);
      text.hidden = true;
      said.textContent = 'copied';
    } catch {
      text.hidden = false;
      said.textContent = 'copy the selected text (Ctrl+C); Escape closes it:';
      text.focus();
      text.select();
    }
  });
  text.addEventListener('keydown', (event) => { if (event.key === 'Escape') close(); });
  place.append(button, said, text);
}
