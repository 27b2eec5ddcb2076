// Asks the server that this page came from, and nobody else.

/** What went wrong, in words for the reader. */
export class Failure extends Error {
  constructor(message, { status = 0, code = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The served model, as `GET /v1/models` describes it. */
export async function servedModel(key) {
  const response = await ask('v1/models', key);
  const list = await response.json();
  return list.data[0];
}

/**
 * Streams the answer to a conversation, as objects with one of
 * `text` ({ reasoning, content }), `progress` (what the server is doing), `reason` (how it ended)
 * and `usage` (tokens).
 */
export async function* answer(body, key, signal) {
  const streamed = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await ask('v1/chat/completions', key, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(streamed),
    signal,
  });
  for await (const line of lines(response)) {
    if (line.startsWith(':')) {
      yield { progress: line.slice(1).trim() };
      continue;
    }
    if (!line.startsWith('data:')) continue;
    const data = line.slice(5).trim();
    if (data === '[DONE]') return;
    const event = JSON.parse(data);
    if (event.error) throw new Failure(event.error.message, { code: event.error.code });
    for (const choice of event.choices) {
      const { reasoning_content: reasoning = '', content = '' } = choice.delta;
      if (reasoning || content) yield { text: { reasoning, content } };
      if (choice.finish_reason) yield { reason: choice.finish_reason };
    }
    if (event.usage) yield { usage: event.usage };
  }
  throw new Failure('The answer broke off: the server closed the connection.');
}

/** A response that is no refusal. The address is relative, so that a proxy may put a path in front. */
async function ask(path, key, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), { ...options, headers });
  } catch (error) {
    throw worded(error);
  }
  if (response.ok) return response;
  let error = {};
  try {
    ({ error } = await response.json());
  } catch {
    // A proxy may answer with anything.
  }
  const message = error?.message ?? `The server answered with status ${response.status}.`;
  throw new Failure(message, { status: response.status, code: error?.code });
}

/** The lines of a body, as they come. */
async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const found = (rest + value).split('\n');
      rest = found.pop();
      yield* found;
    }
  } catch (error) {
    throw worded(error);
  } finally {
    // Also when nobody wants the rest.
    reader.cancel().catch(() => {});
  }
}

/** A failure of the network. One that the reader asked for stays as it is. */
function worded(error) {
  if (error.name === 'AbortError') return error;
  return new Failure('The server does not answer. It may have been stopped.');
}
