// The chat: what is said, what is shown, and the settings.
import { Failure, answer, servedModel } from './api.js';
import { Markdown } from './markdown.js';

const KEY = 'lily-key';
const SETTINGS = 'lily-settings';
const NUMBERS = ['max_tokens', 'temperature', 'top_p', 'top_k', 'min_p', 'seed'];
/** Pixels from the end within which the page follows the text. */
const NEAR = 80;

const by = (id) => document.getElementById(id);
const thread = by('thread');
const question = by('question');

/** What was said, as requests carry it. */
let messages = [];
/** The description of the served model, once it is known. */
let model = null;
/** Stops the answer that is on its way; `null` while there is none. */
let running = null;

// ---- What the tab keeps. A browser may forbid it; then the page forgets.

function recall(name) {
  try {
    return sessionStorage.getItem(name);
  } catch {
    return null;
  }
}

function keep(name, value) {
  try {
    if (value === null) sessionStorage.removeItem(name);
    else sessionStorage.setItem(name, value);
  } catch {
    // It lasts as long as the page, then.
  }
}

let key = recall(KEY);
let settings = JSON.parse(recall(SETTINGS) ?? '{}');

// ---- Small parts.

function element(tag, className, ...content) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...content);
  return node;
}

function button(label, action) {
  const node = element('button', '', label);
  node.type = 'button';
  node.addEventListener('click', action);
  return node;
}

const count = (number) => number.toLocaleString('en');
const tokens = (number) => `${count(number)} ${number === 1 ? 'token' : 'tokens'}`;
const seconds = (time) => `${(time / 1000).toFixed(1)} s`;
// Less than this would read 0.0 s.
const thoughtFor = (time) => (time < 50 ? 'Thought' : `Thought for ${seconds(time)}`);

function isNearEnd() {
  return thread.scrollHeight - thread.scrollTop - thread.clientHeight < NEAR;
}

function scrollToEnd() {
  thread.scrollTop = thread.scrollHeight;
}

function say(text) {
  by('status').textContent = text;
}

/** Shows how much of the context the conversation takes. */
function showContext(used, isExact) {
  if (!model || !used) {
    by('context').hidden = true;
    return;
  }
  const whole = model.context_length;
  by('context').hidden = false;
  const text = `${isExact ? '' : '≈ '}${count(used)} of ${tokens(whole)}`;
  by('context-text').textContent = text;
  by('context').title = `Context in use: ${text}`;
  by('context-meter').value = Math.min(used / whole, 1);
}

// ---- One answer: what it looks like while it comes and when it is there.

class Answer {
  constructor() {
    this.reasoning = '';
    this.content = '';
    this.pieces = 0;
    this.asked = performance.now();
    this.first = 0;
    this.thoughtEnd = 0;
    this.last = 0;
    this.usage = null;
    this.reason = null;

    this.summary = element('summary', '', 'Thinking…');
    const thought = element('div', 'markdown');
    this.thoughtText = new Markdown(thought);
    this.thought = element('details', 'thought', this.summary, thought);
    this.thought.hidden = true;
    // What is folded is not made.
    this.thought.addEventListener('toggle', () => this.draw());
    const text = element('div', 'markdown');
    this.text = new Markdown(text);
    this.note = element('p', 'note');
    this.node = element('article', 'answer busy', this.thought, text, this.note);
    // Read aloud when it is whole, not token by token.
    this.node.ariaBusy = 'true';
  }

  add({ reasoning, content }) {
    this.last = performance.now();
    this.first ||= this.last;
    this.pieces += 1;
    this.reasoning += reasoning;
    this.content += content;
    if (content) this.thoughtEnd ||= this.last;
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
  }

  /** Tokens so far; a piece of text is a token, or a few where they make one character. */
  get tokens() {
    return this.usage?.completion_tokens ?? this.pieces;
  }

  get speed() {
    const time = this.last - this.first;
    // Of a moment there is no speed to tell.
    return time >= 50 ? `${((this.tokens - 1) / (time / 1000)).toFixed(1)} tokens/s` : null;
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const follow = isNearEnd();
    this.thought.hidden = this.reasoning.trim() === '';
    if (this.thought.open) this.thoughtText.update(this.reasoning);
    this.text.update(this.content);
    const end = this.thoughtEnd || (this.isDone && this.last);
    this.summary.textContent = end ? thoughtFor(end - this.first) : 'Thinking…';
    if (running && !this.isDone) {
      say([tokens(this.tokens), this.speed].filter(Boolean).join(' · '));
      showContext(this.before + this.tokens, false);
    }
    if (follow) scrollToEnd();
  }

  /** The answer goes no further. `how` is a word about its end. */
  end(how) {
    this.isDone = true;
    this.node.classList.remove('busy');
    this.node.ariaBusy = 'false';
    this.draw();
    const cached = this.usage?.prompt_tokens_details?.cached_tokens;
    const facts = [
      how,
      this.tokens > 0 && tokens(this.tokens),
      this.speed,
      this.first > 0 && `first after ${seconds(this.first - this.asked)}`,
      cached > 0 && `${tokens(cached)} read before`,
    ];
    this.note.replaceChildren(facts.filter(Boolean).join(' · '));
    if (this.content) this.note.append(' ', copyButton(() => this.content));
    if (this.usage) showContext(this.usage.total_tokens, true);
  }
}

/** Copies a text; absent where the browser does not allow it, as on a page that came unencrypted from afar. */
function copyButton(text) {
  if (!navigator.clipboard) return '';
  const node = button('Copy', () => copy(node, text()));
  node.className = 'copy';
  return node;
}

async function copy(node, text) {
  try {
    await navigator.clipboard.writeText(text);
    node.textContent = 'Copied';
  } catch {
    node.textContent = 'Not allowed';
  }
}

// ---- Asking.

function request() {
  const { system, thinking } = settings;
  const body = { messages: system ? [{ role: 'system', content: system }, ...messages] : messages };
  for (const name of NUMBERS) {
    if (settings[name] !== undefined) body[name] = settings[name];
  }
  if (thinking) body.enable_thinking = thinking === 'on';
  return body;
}

/** What the server is doing while no text comes. */
function progress(comment) {
  const read = /^prefill (\d+)\/(\d+) tokens$/.exec(comment);
  if (read) return `Reading the prompt: ${count(Number(read[1]))} of ${count(Number(read[2]))} tokens`;
  return comment === 'waiting' ? 'Waiting for other requests' : 'Working';
}

/** Has the conversation answered. */
async function ask() {
  const view = new Answer();
  view.before = Number(thread.dataset.tokens ?? 0);
  thread.append(view.node);
  setRunning(new AbortController());
  const { signal } = running;
  say('Asked');
  scrollToEnd();
  let failure = null;
  try {
    for await (const event of answer(request(), key, signal)) {
      if (event.text) view.add(event.text);
      if (event.progress && !view.first) say(progress(event.progress));
      if (event.reason) view.reason = event.reason;
      if (event.usage) view.usage = event.usage;
    }
  } catch (error) {
    failure = error;
  }
  const isStopped = signal.aborted;
  // A new chat has begun meanwhile: this answer is no part of it.
  const isGone = !view.node.isConnected;
  if (running?.signal === signal) setRunning(null);
  if (isGone) return;
  const follow = isNearEnd();
  const cut = view.reason === 'length' && 'cut at the limit of tokens';
  view.end(isStopped ? 'stopped' : cut);
  if (view.usage) thread.dataset.tokens = view.usage.total_tokens;
  say('');
  if (view.content || view.reasoning) {
    const said = { role: 'assistant', content: view.content };
    if (view.reasoning) said.reasoning_content = view.reasoning;
    messages.push(said);
  }
  if (failure && !isStopped) showFailure(view, failure);
  else if (!view.content && !view.reasoning) view.note.prepend('No text. ');
  offerAgain(view);
  if (follow) scrollToEnd();
}

/** An error in place of an answer, or behind the part that came. */
function showFailure(view, failure) {
  const text = failure instanceof Failure ? failure.message : `This page failed: ${failure}`;
  const node = element('p', 'failure', text);
  node.setAttribute('role', 'alert');
  view.note.before(node);
  if (failure.status === 401) askForKey();
}

/** The last answer can be had anew. */
function offerAgain(view) {
  for (const old of thread.querySelectorAll('.again')) old.remove();
  const again = button('Try again', () => {
    if (running) return;
    if (messages.at(-1)?.role === 'assistant') messages.pop();
    view.node.remove();
    ask();
  });
  again.className = 'again';
  view.note.append(' ', again);
}

function setRunning(controller) {
  running = controller;
  by('send').hidden = running !== null;
  by('stop').hidden = running === null;
}

function send() {
  const text = question.value.trim();
  if (!text || running) return;
  if (!model) {
    connect();
    return;
  }
  question.value = '';
  fit();
  by('welcome').hidden = true;
  messages.push({ role: 'user', content: text });
  thread.append(element('article', 'question', text));
  ask();
}

function stop() {
  running?.abort();
}

function newChat() {
  stop();
  setRunning(null);
  messages = [];
  delete thread.dataset.tokens;
  for (const node of thread.querySelectorAll('article')) node.remove();
  by('welcome').hidden = false;
  showContext(0);
  say('');
  question.focus();
}

// ---- The server and its key.

let retry = 0;

/** Finds out which model answers, and whether a key is needed. */
async function connect() {
  clearTimeout(retry);
  try {
    model = await servedModel(key);
    by('model').textContent = model.id;
    document.title = `${model.id} · lily`;
    by('greeting').textContent = 'What would you like to know?';
    by('greeting').className = '';
    by('note').textContent = model.note ?? '';
    by('note').hidden = !model.note;
    by('forget-key').hidden = !key;
  } catch (error) {
    model = null;
    by('greeting').textContent = error.message;
    by('greeting').className = 'failure';
    if (error.status === 401) askForKey();
    // Until the model is loaded, or the server is back.
    else retry = setTimeout(connect, 1000);
  }
}

function askForKey() {
  if (by('key-dialog').open) return;
  by('key-wrong').hidden = !key;
  by('key').value = '';
  by('key-dialog').showModal();
}

by('key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  key = by('key').value.trim();
  keep(KEY, key);
  by('key-dialog').close();
  connect();
});

// ---- Settings.

const form = by('settings-form');

function showSettings() {
  for (const field of form.elements) {
    if (field.name) field.value = settings[field.name] ?? '';
  }
}

function readSettings() {
  settings = {};
  for (const field of form.elements) {
    if (!field.name || field.value.trim() === '') continue;
    settings[field.name] = field.type === 'number' ? Number(field.value) : field.value;
  }
  keep(SETTINGS, JSON.stringify(settings));
  colour();
}

function colour() {
  document.documentElement.dataset.colours = settings.colours ?? '';
}

by('open-settings').addEventListener('click', () => {
  showSettings();
  by('settings').showModal();
});
// The browser has checked the numbers by then.
form.addEventListener('submit', (event) => {
  event.preventDefault();
  readSettings();
  by('settings').close();
});
by('reset-settings').addEventListener('click', () => {
  for (const field of form.elements) {
    if (field.name) field.value = '';
  }
});
by('forget-key').addEventListener('click', () => {
  key = null;
  keep(KEY, null);
  by('settings').close();
  connect();
});

// ---- Keys and buttons.

/** Makes the field as high as its text, up to a bound in the style. */
function fit() {
  question.style.height = 'auto';
  question.style.height = `${question.scrollHeight + 2}px`;
}

by('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  send();
});
question.addEventListener('input', fit);
question.addEventListener('keydown', (event) => {
  // Enter that ends the input of a character is not meant.
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && !document.querySelector('dialog[open]')) stop();
});
by('stop').addEventListener('click', stop);
by('new').addEventListener('click', newChat);
// Copy buttons of code come and go with the text.
thread.addEventListener('click', (event) => {
  const node = event.target.closest('.code .copy');
  if (node) copy(node, node.closest('.code').querySelector('code').textContent);
});

colour();
connect();
