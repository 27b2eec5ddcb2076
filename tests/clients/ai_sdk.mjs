// The server through the Vercel AI SDK: `node ai_sdk.mjs BASE_URL`, on the replies of script.jsonl.
import assert from 'node:assert/strict';
import { generateText, isStepCount, streamText, tool } from 'ai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { z } from 'zod';

const provider = createOpenAICompatible({ name: 'lily', baseURL: process.argv[2], includeUsage: true });
const model = provider('lily');
const maxRetries = 0;

const whole = await generateText({ model, maxRetries, prompt: 'Greet me.' });
assert.equal(whole.text, 'Hello, you!');
assert.equal(whole.reasoningText, 'I greet them.');
assert.equal(whole.finishReason, 'stop');
assert.ok(whole.usage.inputTokens > 0 && whole.usage.outputTokens > 0);
assert.ok(whole.usage.outputTokenDetails.reasoningTokens > 0);

// In pieces, which join to the same.
const streamed = streamText({ model, maxRetries, prompt: 'Greet me.' });
const pieces = [];
for await (const piece of streamed.textStream) pieces.push(piece);
assert.equal(pieces.join(''), whole.text);
assert.ok(pieces.length > 1);
assert.equal(await streamed.reasoningText, whole.reasoningText);
assert.deepEqual((await streamed.usage).outputTokens, whole.usage.outputTokens);

// A tool is called with arguments of its types, and its result goes back.
const asked = [];
const tools = {
  weather: tool({
    description: 'The weather of a city',
    inputSchema: z.object({ city: z.string(), days: z.number().int() }),
    execute: async (input) => {
      asked.push(input);
      return { degrees: 21 };
    },
  }),
};
const question = { model, maxRetries, tools, prompt: 'Weather in Paris?', stopWhen: isStepCount(3) };
const called = await generateText(question);
assert.equal(called.text, 'It is 21 degrees in Paris.');
assert.deepEqual(called.steps.map((step) => step.finishReason), ['tool-calls', 'stop']);
assert.ok(called.steps[1].usage.inputTokens > called.steps[0].usage.inputTokens);
const flowing = streamText(question);
assert.equal(await flowing.text, 'It is 21 degrees in Paris.');
assert.equal((await flowing.steps).length, 2);
assert.deepEqual(asked, [{ city: 'Paris', days: 2 }, { city: 'Paris', days: 2 }]);

console.log('the Vercel AI SDK passes');
