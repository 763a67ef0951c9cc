
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

// The formula of the bytes that an end sends in a phase, if they follow it. `sent`: by end; n: number of ends.
function formulaOf(mode, phase, sent, n) {
  const each = [...sent.values()], buckets = bucketBytes(mode), isNear = (value, expected) => Math.abs(value - expected) <= 0.005 * expected;
  if (phase === 'gradients' && hasRanks(mode) && buckets > 0 && each.length === n && each.every((value) => isNear(value, 2 * (n - 1) / n * buckets)))
    return `= 2 (n-1)/n times the ${bytes(buckets)} of buckets, sent by each rank, with n = ${n}`;
  if (mode.gradient_bytes > 0 && ['parameters', 'gradients'].includes(phase) && isNear(sum(each), (n - 1) * mode.gradient_bytes))
    return `= (n-1) P, with n = ${n} and P = ${bytes(mode.gradient_bytes)}`;
  return '';
}

// DistributedDataParallel's gradients: why buckets hold more bytes, and the algorithm of the all-reduce.
function bucketNotes(mode, links, n) {
  const buckets = bucketBytes(mode), notes = [];
  if (mode.gradient_bytes && buckets > mode.gradient_bytes)
    notes.push(`Gradients: ${bytes(mode.gradient_bytes)}, buckets: ${bytes(buckets)}. Each gradient starts at a multiple of 64 bytes, and each bucket has metadata.`);
  if (n > 2 && links.length === n * (n - 1))
    notes.push('The all-reduce is direct: each rank sends to every other rank. A ring sends as many bytes, but to one neighbour only.');
  return notes.map((text) => element('div', {class: 'formula'}, text));
}

// What a phase moved: by link, and where there are more than two, the sum by sender, which unfolds into the links.
function moved(mode, phase, all, perStep) {
  const steps = perStep ? Math.max(mode.step_count, 1) : 1, when = perStep ? 'a step' : 'before the first step';
  const links = all.filter((each) => each.phase === phase), n = mode.steps.length ? mode.steps[0].lanes.length : 1;
  if (!links.length) return [];
  const row = (name, amount, transfers) => element('div', {class: 'link'}, name + ': ', element('b', {}, bytes(amount / steps)), ` in ${times(transfers / steps)} ${when}`);
  const linkName = (link) => link.to < 0 ? `${endName(mode, link.from)} sends` : `${endName(mode, link.from)} to ${endName(mode, link.to)}`;
  const rows = links.map((link) => row(linkName(link), link.bytes, link.transfers));
  const sent = new Map(), transfers = new Map();
  for (const link of links) {
    sent.set(link.from, (sent.get(link.from) || 0) + link.bytes / steps);
    transfers.set(link.from, (transfers.get(link.from) || 0) + link.transfers);
  }
  const cell = links.length <= 2 ? rows : [...sent].map(([end, amount]) => row(`${endName(mode, end)} sends`, amount * steps, transfers.get(end)));
  if (links.length > 2 && links.length > sent.size) cell.push(element('details', {}, element('summary', {}, `all ${links.length} links`), ...rows));
  const formula = formulaOf(mode, phase, sent, n);
  if (formula) cell.push(element('div', {class: 'formula'}, formula));
  return perStep && phase === 'gradients' && hasRanks(mode) ? [...cell, ...bucketNotes(mode, links, n)] : cell;
}

const prose = {
  'loads data': {single: 'One process, the whole batch.', accumulate: 'One process, the whole batch.',
                 dp: 'One process, the whole batch.', ddp: 'Each rank loads the samples of its micro-batches only.'},
  'splits the batch': {single: 'Not split.', accumulate: 'Into micro-batches, run in turn on one device.',
                       dp: 'Device 0 sends each replica its samples.', ddp: 'Nothing to send: the sampler assigns each rank its samples.',
                       phase: 'inputs'},
  'sends parameters': {single: 'No.', accumulate: 'No.', dp: 'Device 0 to every replica, after each update.',
                       ddp: 'Once, from rank 0, before the first step. Afterwards all ranks make the same update.', sharded: 'Gathers of units: stages 1 and 2 once a step, stage 3 in each forward and backward.', phase: 'parameters'},
  'sends buffers': {single: 'No.', accumulate: 'No.', dp: 'Device 0 to every replica, if the model has buffers.',
                    ddp: 'Rank 0 to every rank, if the model has buffers.', phase: 'buffers'},
  'collects outputs': {single: 'No.', accumulate: 'No.', dp: 'Replicas to device 0, which computes the loss.',
                       ddp: 'No: each rank computes its own loss.', phase: 'outputs'},
  'returns the loss gradient': {single: 'No.', accumulate: 'No.', dp: 'Device 0 to every replica, if device 0 computes the loss.',
                                ddp: 'No.', phase: 'loss gradient'},
  'sums gradients': {single: 'No.', accumulate: 'Summed in canonical order, in place.',
                     dp: 'Replicas to device 0, after backward.',
                     ddp: 'All-reduce of buckets, while backward runs.', sharded: 'Reduce-scatter of units, while backward runs.', phase: 'gradients'},
  'updates': {single: 'One optimizer.', accumulate: 'One optimizer.', dp: 'One optimizer, on device 0.',
              ddp: 'Every rank, with the same gradients.', sharded: 'Each rank its own part.'},
};

// The bytes of ranks without buckets have phases, but no steps of DistributedDataParallel to explain.
function makePhases() {
  const rows = Object.entries(prose).map(([name, texts]) => [name, ...data.modes.map((mode) => {
    const cell = element('td', {'data-mode': mode.id, 'data-name': mode.name, 'data-phase': texts.phase || ''}, isSharded(mode) ? texts.sharded || texts.ddp : texts[mode.mode] || '');
    if (texts.phase) cell.append(...moved(mode, texts.phase, mode.at_start, false), ...moved(mode, texts.phase, mode.links, true));
    return cell;
  })]);
  if (data.modes.some((mode) => mode.links.some((link) => link.phase === 'other')))
    rows.push(['other', ...data.modes.map((mode) => element('td', {'data-mode': mode.id, 'data-name': mode.name, 'data-phase': 'other'},
                                                            ...moved(mode, 'other', mode.links, true)))]);
  table($('phases'), ['phase', ...data.modes.map((mode) => mode.name)], rows);
  const uncounted = data.modes.filter((mode) => !mode.counted).map((mode) => mode.name);
  if (uncounted.length) $('source').textContent += ` Of ${listed(uncounted)}: of the events in the traced steps, because the trace holds no counters.`;
}

function makeOverlap() {
  const rows = data.modes.map((mode) => {
    const steps = Math.max(mode.steps.length, 1), lanes = mode.steps.length ? mode.steps[0].lanes.length : 1;
    const [, communication, waiting] = mode.shares;
    const error = Math.max(0, ...mode.clocks.map((clock) => clock.error)), dropped = sum(mode.clocks.map((clock) => clock.dropped));
    return [mode.name, overlapText(mode), time(communication / steps / lanes), time(waiting / steps / lanes),
            mode.clocks.length > 1 ? `\u00b1 ${time(error)}` : 'one clock', count(dropped)];
  });
  table($('overlap'), ['strategy', 'done before the last gradient was ready', 'exposed communication, mean per step and lane', 'waiting, mean per step and lane', 'clock uncertainty', 'events dropped'], rows);
}

// ---- who sends to whom, the last rank of each collective, guessing, and figures as SVG ----

const endsOf = (mode) => [...Array(1 + Math.max(...mode.links.map((link) => Math.max(link.from, link.to)))).keys()];

// `moved`: [from, to, bytes], with -1 for a receiver that is not known.
function fillMatrix(target, mode, moved) {
  const ends = endsOf(mode);
  const sum = (from, to) => moved.filter((each) => (from < 0 || each[0] === from) && (to < 0 || each[1] === to))
                                 .reduce((total, each) => total + each[2], 0);
  const number = (n) => element('td', {class: 'number'}, count(n));
  const isKnown = moved.every((each) => each[1] >= 0);
  const cell = (from, to) => isKnown || from === to ? number(sum(from, to)) : element('td', {class: 'number'}, '?');
  table(target, ['from \\ to', ...ends.map((end) => endName(mode, end)), 'sent'],
        [...ends.map((from) => [endName(mode, from), ...ends.map((to) => cell(from, to)), number(sum(from, -1))]),
         ['received', ...ends.map((to) => cell(-1, to)), number(sum(-1, -1))]]);
}

const modesThatMove = () => data.modes.filter((mode) => mode.links.length > 0);

function makeMatrices() {
  for (const mode of modesThatMove()) {
    const made = element('table', {id: 'matrix-' + mode.id});
    fillMatrix(made, mode, mode.links.map((link) => [link.from, link.to, link.bytes]));
    $('matrices').append(element('div', {class: 'side'},
        element('div', {}, element('h3', {}, `${mode.name}: bytes in ${count(mode.step_count)} steps`), made),
        element('div', {id: 'step-' + mode.id})));
  }
  if (!$('matrices').children.length) $('matrices').append(element('p', {}, 'Nothing was moved.'));
}

// What the events of the step that is shown say: copies name both ends, collectives their rank.
function drawStepMatrices() {
  for (const mode of modesThatMove()) {
    const step = shownStep(mode), place = $('step-' + mode.id), ends = endsOf(mode);
    place.replaceChildren();
    if (!step) continue;
    const moved = [];
    for (const event of step.lanes.flatMap((lane) => lane.events)) {
      const kind = kinds[event[0]], sent = field(event, 5), from = field(event, 7), to = field(event, 8);
      if (sent <= 0 || from < 0) continue;
      if (kind === 'copy' && to >= 0) moved.push([from, to, sent]);
      else if (kind === 'copy' || kind === 'collective') moved.push([from, ends.length === 2 ? 1 - from : -1, sent]);
    }
    const made = element('table', {id: 'step-matrix-' + mode.id});
    fillMatrix(made, mode, moved);
    place.append(element('h3', {}, `${mode.name}: bytes in step ${step.number}`), made);
  }
}

// Of the step that is shown.
function drawArrivals() {
  $('arrivals').replaceChildren();
  for (const mode of data.modes) {
    const step = shownStep(mode);
    if (!step || !step.arrivals.length) continue;
    const made = element('table', {id: 'arrivals-' + mode.id});
    table(made, ['collective', 'last rank to launch it', 'delay after the first rank'], step.arrivals.map((each) => [
      `${each.name} #${each.id}`, each.certain ? 'rank ' + each.last : 'not known: the clocks differ by more', time(each.late)]));
    $('arrivals').append(element('h3', {}, `${mode.name}, step ${step.number}: the last rank of each collective`), element('div', {class: 'scroll'}, made));
  }
}

// ---- guessing: numbers are hidden on the screen only while it is asked for, and each until it was guessed ----
function makeGuess() {
  const questions = modesThatMove().flatMap((mode) => [...new Set(mode.links.map((link) => link.phase))].map((phase) => {
    const all = mode.links.filter((link) => link.phase === phase).reduce((sum, link) => sum + link.bytes, 0);
    return {mode, phase, measured: all / Math.max(mode.step_count, 1)};
  }));
  $('offer').hidden = !questions.length;
  const isAsked = (cell) => (each) => cell.dataset.mode === each.mode.id && cell.dataset.phase === each.phase;
  const cells = [...$('phases').querySelectorAll('td')];
  // Hides everything that tells an answer until all questions are answered.
  const hide = () => document.body.classList.toggle('guessing', $('guessing').checked &&
      questions.some((each) => cells.some((cell) => isAsked(cell)(each) && !cell.classList.contains('told'))));
  questions.forEach((each, i) => $('question').append(element('option', {value: i}, `${each.mode.name}: ${each.phase}, all links`)));
  $('guessing').addEventListener('change', () => {
    hide();
    $('guess').hidden = !$('guessing').checked;
  });
  $('question').addEventListener('change', () => { $('answer').textContent = ''; });
  const compare = () => {
    const guess = $('guessed').valueAsNumber, question = questions[$('question').value], {mode, phase, measured} = question;
    if (Number.isNaN(guess)) { $('answer').textContent = 'Please type a number of bytes.'; return; }
    const ratio = guess > 0 && measured > 0 ? Math.max(guess / measured, measured / guess) : Infinity;
    $('answer').textContent = `${mode.name}, ${phase}: you said ${bytes(guess)}, measured are ${bytes(measured)} a step` +
        (ratio < 1.005 ? ': right' : ratio < Infinity ? `: off by a factor of ${ratio.toFixed(ratio < 10 ? 2 : 0)}` : '');
    for (const cell of cells) if (isAsked(cell)(question)) cell.classList.add('told');
    hide();
  };
  $('compare').addEventListener('click', compare);
  $('guessed').addEventListener('keydown', (event) => { if (event.key === 'Enter') compare(); });
}

// ---- a figure as SVG ----
const inherited = ['fill', 'fill-opacity', 'paint-order', 'stroke', 'stroke-width', 'stroke-dasharray', 'font-family', 'font-size'];

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
