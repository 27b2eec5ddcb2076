//! Rounds counted by hand: nothing here looks at a clock.

use std::sync::Arc;

use lily_chat::{CompletionRequest, random_model};
use lily_cpu::{CpuDevice, CpuOptions, Numerics};
use lily_model::Checkpoint;
use lily_model::engine::{CacheMemory, Engine, EngineOptions};
use lily_model::plan::model_shape;
use lily_model::sampling::Sampling;
use lily_text::Thinking;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;
use crate::turns::SMALLEST_CHUNK;
use crate::update::Listener;

/// A character of one token.
const LETTER: u32 = b'a' as u32;

type Heard = UnboundedReceiver<(usize, Update)>;

fn engine(sessions: usize, steps_ahead: usize) -> (Generator, Tokenizer) {
    engine_with(sessions, steps_ahead, 0)
}

/// One with so many bytes for beginnings of prompts.
fn engine_with(sessions: usize, steps_ahead: usize, cache: u64) -> (Generator, Tokenizer) {
    let folder = random_model().unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let numerics = Numerics::Exact;
    let device = CpuDevice::new(CpuOptions { numerics, threads: 1, ..CpuOptions::default() });
    let base = EngineOptions { context: 2048, chunk: 64, ..EngineOptions::default() };
    let run_ahead = steps_ahead.max(1);
    let cache = CacheMemory::Bytes(cache);
    let options = EngineOptions { batch: sessions, run_ahead, steps_ahead, cache, ..base };
    let shape = model_shape(checkpoint.config());
    let weights = checkpoint.weights().unwrap();
    let engine = Engine::new(Box::new(device), shape, weights, options).unwrap();
    (Generator::Engine(Box::new(engine)), Tokenizer::open(folder.path()).unwrap())
}

/// A floor whose chunks beside running streams are the smallest.
fn floor<'a>(worker: &'a Worker, generator: Generator, tokenizer: &'a Tokenizer) -> Floor<'a> {
    let mut floor = Floor::new(worker, generator, tokenizer, Duration::ZERO);
    floor.pace.note(1, Duration::from_secs(1));
    floor
}

/// Asks for letters behind a prompt of so many tokens.
fn ask(worker: &Worker, prompt: usize, max_tokens: usize) -> Heard {
    let (sender, receiver) = unbounded_channel();
    let mut sampling = Sampling::greedy();
    sampling.logit_bias.insert(LETTER, 100.0);
    let request = CompletionRequest {
        prompt: vec![1; prompt],
        thinking: Thinking::Absent,
        thinking_budget: None,
        max_tokens,
        stop_ids: Vec::new(),
        stop: Vec::new(),
        tools: Vec::new(),
        sampling,
        logprobs: None,
        format: None,
    };
    let updates = Listener::new(sender, 0);
    worker.queue.push(vec![Job { request, single_call: false, script: None, updates }]).unwrap();
    receiver
}

/// What was heard since the last time.
#[derive(Debug, Default, PartialEq)]
struct News {
    /// Tokens of the prompt, chunk by chunk.
    prefilled: Vec<usize>,
    letters: usize,
    finished: bool,
    failed: bool,
}

fn news(heard: &mut Heard) -> News {
    let mut news = News::default();
    while let Ok((_, update)) = heard.try_recv() {
        match update {
            Update::Prefilled(tokens) => news.prefilled.push(tokens),
            Update::Content(text) => news.letters += text.len(),
            Update::Finished(_) => news.finished = true,
            Update::Failed(_) => news.failed = true,
            other => panic!("{other:?}"),
        }
    }
    news
}

#[test]
fn r77_a_long_prompt_stops_streams_for_one_small_chunk_at_a_time() {
    let (generator, tokenizer) = engine(3, 0);
    let worker = Worker::new(8, 3);
    let mut floor = floor(&worker, generator, &tokenizer);
    let (mut a, mut b) = (ask(&worker, 5, 2000), ask(&worker, 64, 2000));
    assert!(floor.admit());
    // Alone, prompts are read in the engine's own chunks, one a round.
    floor.round();
    assert_eq!((news(&mut a).prefilled, news(&mut b).prefilled), (vec![5], vec![]));
    floor.round();
    assert_eq!((news(&mut a).letters, news(&mut b).prefilled.len()), (1, 1));
    while news(&mut b).letters == 0 {
        floor.round();
    }
    news(&mut a);
    let mut long = ask(&worker, 1000, 5);
    assert!(floor.admit());
    let mut read = 0;
    while read < 1000 {
        floor.round();
        // One token of each stream, then one chunk.
        assert_eq!((news(&mut a).letters, news(&mut b).letters), (1, 1));
        let chunk = news(&mut long).prefilled;
        assert_eq!(chunk, [(read + SMALLEST_CHUNK).min(1000)]);
        read = chunk[0];
    }
    for _ in 0..6 {
        floor.round();
    }
    assert!(news(&mut long).finished);
    assert_eq!((news(&mut a).letters, news(&mut b).letters), (6, 6));
}

#[test]
fn prompts_are_read_in_turn_and_the_short_one_first_answers() {
    let (generator, tokenizer) = engine(2, 0);
    let worker = Worker::new(8, 2);
    let mut floor = floor(&worker, generator, &tokenizer);
    let (mut long, mut short) = (ask(&worker, 1000, 1), ask(&worker, 100, 1));
    assert!(floor.admit());
    for _ in 0..4 {
        floor.round();
    }
    assert_eq!(news(&mut long).prefilled, [64, 128]);
    assert_eq!(news(&mut short).prefilled, [64, 100]);
    floor.round();
    assert!(news(&mut short).finished);
}

#[test]
fn a_turn_is_longer_where_the_engine_runs_ahead() {
    let (generator, tokenizer) = engine(2, 2);
    let worker = Worker::new(8, 2);
    let mut floor = floor(&worker, generator, &tokenizer);
    let (mut a, mut b) = (ask(&worker, 5, 2000), ask(&worker, 5, 2000));
    assert!(floor.admit());
    floor.round();
    floor.round();
    news(&mut a);
    news(&mut b);
    for _ in 0..5 {
        floor.round();
        let turn = 2 * TURN_PER_STEP_AHEAD;
        assert_eq!((news(&mut a).letters, news(&mut b).letters), (turn, turn));
    }
}

#[test]
fn a_client_that_leaves_is_gone_by_the_next_round_and_the_next_one_has_its_place() {
    let (generator, tokenizer) = engine(2, 1);
    let worker = Worker::new(8, 2);
    let mut floor = floor(&worker, generator, &tokenizer);
    // While its prompt is read, and while text flows.
    for rounds in [1, 30] {
        let (mut stays, leaves) = (ask(&worker, 5, 1900), ask(&worker, 1000, 1000));
        assert!(floor.admit());
        for _ in 0..rounds {
            floor.round();
        }
        news(&mut stays);
        let mut next = ask(&worker, 5, 1);
        assert!(floor.admit());
        assert_eq!((worker.running(), worker.queue.waiting()), (2, 1));
        drop(leaves);
        floor.round();
        assert_eq!((worker.running(), worker.queue.waiting()), (1, 1));
        assert!(floor.admit());
        assert_eq!((worker.running(), worker.queue.waiting()), (2, 0));
        for _ in 0..2 {
            floor.round();
        }
        assert!(news(&mut next).finished);
        assert!(news(&mut stays).letters > 0);
        drop(stays);
        floor.round();
        assert_eq!(worker.running(), 0);
    }
    // Every place can be had again.
    let (_a, _b) = (ask(&worker, 5, 1), ask(&worker, 5, 1));
    assert!(floor.admit());
    assert_eq!(worker.running(), 2);
}

#[test]
fn at_the_end_running_requests_finish_and_waiting_ones_are_refused() {
    let (generator, tokenizer) = engine(2, 0);
    let worker = Worker::new(8, 2);
    let mut floor = floor(&worker, generator, &tokenizer);
    let mut running = [ask(&worker, 5, 10), ask(&worker, 100, 10)];
    let mut waiting = ask(&worker, 5, 1);
    assert!(floor.admit());
    floor.round();
    worker.queue.close();
    assert!(news(&mut waiting).failed);
    let mut rounds = 0;
    while floor.admit() {
        floor.round();
        rounds += 1;
        assert!(rounds < 30);
    }
    assert!(running.iter_mut().all(|heard| news(heard).finished));
    assert_eq!(worker.running(), 0);
}

#[test]
fn an_abort_ends_everything_within_one_round() {
    let (generator, tokenizer) = engine(3, 0);
    let worker = Arc::new(Worker::new(8, 3));
    let mut floor = floor(&worker, generator, &tokenizer);
    let mut running = [ask(&worker, 5, 1000), ask(&worker, 5, 1000), ask(&worker, 1000, 1000)];
    assert!(floor.admit());
    for _ in 0..5 {
        floor.round();
    }
    worker.queue.close();
    worker.abort();
    floor.round();
    assert!(!floor.admit());
    assert!(running.iter_mut().all(|heard| news(heard).failed));
}

/// Enough for all that a test keeps.
const CACHE: u64 = 64 << 20;

/// R74, R75: what was read is there for the retry.
#[test]
fn a_retry_goes_on_where_the_first_request_was_left() {
    let (generator, tokenizer) = engine_with(1, 0, CACHE);
    let worker = Worker::new(8, 1);
    let mut floor = floor(&worker, generator, &tokenizer);
    let mut left = ask(&worker, 1000, 5);
    assert!(floor.admit());
    for _ in 0..13 {
        floor.round();
    }
    assert_eq!(news(&mut left).prefilled.last(), Some(&832));
    drop(left);
    let mut retry = ask(&worker, 1000, 5);
    // The client is seen to be gone, and its place is taken.
    floor.round();
    assert!(floor.admit());
    for _ in 0..3 {
        floor.round();
    }
    assert_eq!(news(&mut retry).prefilled, [896, 960, 1000]);
    for _ in 0..10 {
        floor.round();
    }
    assert!(news(&mut retry).finished);
    assert_eq!((worker.cache().hits, worker.cache().reused_tokens), (1, 832));
}

#[test]
fn requests_with_one_beginning_read_it_once() {
    let (generator, tokenizer) = engine_with(4, 0, CACHE);
    let worker = Worker::new(8, 4);
    let mut floor = floor(&worker, generator, &tokenizer);
    // The choices of a request; and one whose client leaves, so that the next in line reads on.
    let mut heard: Vec<Heard> = (0..4).map(|_| ask(&worker, 500, 5)).collect();
    assert!(floor.admit());
    for _ in 0..3 {
        floor.round();
    }
    let prefilled: Vec<_> = heard.iter_mut().map(|heard| news(heard).prefilled).collect();
    assert_eq!(prefilled, [vec![64, 128, 192], vec![], vec![], vec![]]);
    drop(heard.remove(0));
    let mut rounds = 0;
    while worker.running() > 0 {
        floor.round();
        rounds += 1;
        assert!(rounds < 100);
    }
    let all: Vec<_> = heard.iter_mut().map(news).collect();
    assert!(all.iter().all(|news| news.finished && news.letters == 5), "{all:?}");
    assert_eq!(all[0].prefilled[0], 256, "goes on where the one that left was");
    // Its end is read beside the others, in small chunks.
    assert!(all[0].prefilled.contains(&448) && all[0].prefilled.last() == Some(&500));
    // The others go on behind it.
    assert!(all[1..].iter().all(|news| news.prefilled[0] > 448), "{all:?}");
}

#[test]
fn the_longest_beginning_that_is_kept_is_known_beforehand() {
    // The only place in such a prompt.
    let place = 448;
    let (generator, _) = engine_with(1, 0, 0);
    let Generator::Engine(engine) = generator else { panic!("an engine was asked for") };
    assert_eq!(engine.longest_kept(), 0);
    let needed = engine.bytes_to_keep(place);
    for (cache, longest, states) in [(needed, place, 1), (needed - 1, place - 1, 0)] {
        let (generator, tokenizer) = engine_with(1, 0, cache);
        let Generator::Engine(engine) = &generator else { panic!("an engine was asked for") };
        assert_eq!(engine.longest_kept(), longest);
        let worker = Worker::new(8, 1);
        let mut floor = floor(&worker, generator, &tokenizer);
        let mut heard = ask(&worker, 500, 1);
        assert!(floor.admit());
        while worker.running() > 0 {
            floor.round();
        }
        assert!(news(&mut heard).finished);
        assert_eq!(worker.cache().states, states);
    }
}

#[test]
fn nobody_waits_for_a_beginning_that_will_not_be_kept() {
    for (cache, prompt) in [(0, 500), (20_000, 500), (CACHE, 60)] {
        let (generator, tokenizer) = engine_with(2, 0, cache);
        let worker = Worker::new(8, 2);
        let mut floor = floor(&worker, generator, &tokenizer);
        let mut both = [ask(&worker, prompt, 5), ask(&worker, prompt, 5)];
        assert!(floor.admit());
        floor.round();
        floor.round();
        assert!(both.iter_mut().all(|heard| !news(heard).prefilled.is_empty()), "{cache} {prompt}");
        let mut rounds = 0;
        while worker.running() > 0 {
            floor.round();
            rounds += 1;
            assert!(rounds < 100, "{cache}");
        }
        assert!(both.iter_mut().all(|heard| news(heard).finished), "{cache}");
        assert!(worker.cache().bytes <= cache);
    }
}
