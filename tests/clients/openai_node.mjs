// The server through the `openai` package: `node openai_node.mjs BASE_URL`.
import assert from 'node:assert/strict';
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: process.argv[2], apiKey: 'none', maxRetries: 0 });
const messages = [{ role: 'user', content: 'Hi' }];
const model = (await client.models.list()).data[0].id;
// Ends of turn and thought in the tiny model's vocabulary, made impossible.
const ends = [499, 500, 501, 502, 503, 509, 510, 511];
const logit_bias = Object.fromEntries(ends.map((token) => [token, -100]));
const asked = { model, messages, seed: 5, max_tokens: 24, logit_bias };

const whole = await client.chat.completions.create(asked);
assert.equal(whole.choices[0].finish_reason, 'length');
assert.equal(whole.choices[0].message.content, '');
const thought = whole.choices[0].message.reasoning_content;
assert.ok(thought);
assert.equal(whole.usage.completion_tokens, 24);

let streamed = '';
const reasons = [];
const usages = [];
const options = { stream: true, stream_options: { include_usage: true } };
for await (const chunk of await client.chat.completions.create({ ...asked, ...options })) {
  if (chunk.usage) usages.push(chunk.usage);
  for (const choice of chunk.choices) {
    streamed += choice.delta.reasoning_content ?? '';
    if (choice.finish_reason) reasons.push(choice.finish_reason);
  }
}
assert.equal(streamed, thought);
assert.deepEqual(reasons, ['length']);
assert.deepEqual(usages, [whole.usage]);

// The answer, and a text that goes on, are the same streamed and not.
const plain = { ...asked, reasoning_effort: 'none' };
const answer = (await client.chat.completions.create(plain)).choices[0].message.content;
assert.ok(answer);
let pieces = '';
for await (const chunk of await client.chat.completions.create({ ...plain, stream: true })) {
  for (const choice of chunk.choices) pieces += choice.delta.content ?? '';
}
assert.equal(pieces, answer);
const { messages: _messages, ...going } = { ...asked, prompt: 'abc' };
const text = await client.completions.create(going);
assert.equal(text.usage.prompt_tokens, 3);
pieces = '';
for await (const chunk of await client.completions.create({ ...going, stream: true })) {
  for (const choice of chunk.choices) pieces += choice.text;
}
assert.equal(pieces, text.choices[0].text);

await assert.rejects(client.chat.completions.create({ ...asked, n: 33 }), (error) => {
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.equal(error.param, 'n');
  return true;
});
await assert.rejects(
  client.chat.completions.create({ ...asked, model: 'gpt-4o' }),
  (error) => error instanceof OpenAI.NotFoundError && error.code === 'model_not_found',
);

// A client that leaves: the next request is answered.
const long = await client.chat.completions.create({ ...asked, max_tokens: 100000, stream: true });
for await (const _ of long) break;
await client.chat.completions.create(asked, { timeout: 20000 });
console.log('openai for Node passes');
