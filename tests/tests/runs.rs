//! Runs side by side: each gives what it gives alone, however they are mixed, stopped and left.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lily_cpu::{CpuDevice, CpuOptions, Numerics};
use lily_model::engine::{
    Allowed, Constraint, ConstraintError, Engine, EngineError, EngineOptions, Finish, Generation,
    Progress, Run, TokenMask,
};
use lily_model::plan::PrefillEnd;
use lily_model::sampling::{Sampling, SamplingError};
use lily_plan::{Device, DeviceError, Fetch, forward_device};
use lily_tests::{Golden, argmax, max_difference};

const CONTEXT: usize = 160;
const EXACT_LOGIT: f32 = 1e-3;
/// Ids that every golden model has.
const IDS: usize = 384;

fn options() -> EngineOptions {
    EngineOptions { context: CONTEXT, chunk: 16, ..EngineOptions::default() }
}

/// The CPU on one thread: many small steps wait less for each other.
fn exact() -> Box<dyn Device> {
    let numerics = Numerics::Exact;
    Box::new(CpuDevice::new(CpuOptions { numerics, threads: 1, ..CpuOptions::default() }))
}

/// The same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        ((self.0 >> 33) % bound as u64) as usize
    }
}

/// A prompt and what to make of it.
#[derive(Clone)]
struct Task {
    prompt: Vec<u32>,
    generation: Generation,
}

/// Tasks of all kinds: greedy on the device, greedy and sampled on the host, with log probabilities.
fn tasks(n: usize, random: &mut Random) -> Vec<Task> {
    (0..n)
        .map(|index| {
            let length = 1 + random.below(40);
            let prompt = (0..length).map(|_| random.below(IDS) as u32).collect();
            let seed = random.below(1 << 20) as u64;
            let sampled = Sampling { temperature: 1.0, top_k: 20, seed, ..Sampling::greedy() };
            let sampling = if index % 3 == 1 { sampled } else { Sampling::greedy() };
            let logprobs = (index % 4 == 2).then_some(3);
            let limit = 1 + random.below(16);
            let stop_ids = (0..random.below(12)).map(|_| random.below(IDS) as u32).collect();
            let generation =
                Generation { limit, stop_ids, sampling, logprobs, ..Generation::default() };
            Task { prompt, generation }
        })
        .collect()
}

/// What a run gave.
#[derive(Debug, Default, PartialEq)]
struct Text {
    progress: Vec<Progress>,
    finish: Option<Finish>,
}

fn alone(engine: &mut Engine, task: &Task) -> Text {
    let sequence = engine.open().unwrap();
    let mut run = engine.start(sequence, &task.prompt, task.generation.clone()).unwrap();
    let mut text = Text::default();
    while let Some(progress) = engine.advance(&mut run).unwrap() {
        text.progress.push(progress);
    }
    engine.close(sequence);
    text.finish = run.finish();
    text
}

/// Runs all tasks at once, as `next` chooses among those that are left.
fn together(
    engine: &mut Engine,
    tasks: &[Task],
    next: &mut dyn FnMut(usize) -> usize,
) -> Vec<Text> {
    let start = |engine: &mut Engine, task: &Task| -> Run {
        let sequence = engine.open().unwrap();
        engine.start(sequence, &task.prompt, task.generation.clone()).unwrap()
    };
    let mut runs: Vec<(usize, Run)> =
        tasks.iter().enumerate().map(|(i, task)| (i, start(engine, task))).collect();
    let mut texts: Vec<Text> = tasks.iter().map(|_| Text::default()).collect();
    while !runs.is_empty() {
        let at = next(runs.len());
        let (index, run) = &mut runs[at];
        match engine.advance(run).unwrap() {
            Some(progress) => texts[*index].progress.push(progress),
            None => {
                texts[*index].finish = run.finish();
                engine.close(run.sequence());
                runs.remove(at);
            }
        }
    }
    texts
}

/// Logits after `ids` and one more token, in an engine that has run nothing else.
fn cold_step(engine: &mut Engine, ids: &[u32], next: u32) -> Vec<f32> {
    let sequence = engine.open().unwrap();
    engine.prefill(sequence, ids, PrefillEnd::More).unwrap();
    engine.step(sequence, next).unwrap();
    let logits = engine.logits(sequence).unwrap();
    engine.close(sequence);
    logits
}

#[test]
fn two_and_sixteen_runs_side_by_side_give_what_each_gives_alone() {
    let golden = Golden::open("heads");
    let mut single = golden.engine(exact(), options());
    for (batch, run_ahead, steps_ahead) in [(2, 1, 0), (2, 2, 1), (16, 1, 0), (16, 3, 2)] {
        let base = EngineOptions { batch, run_ahead, steps_ahead, ..options() };
        let mut engine = golden.engine(exact(), base);
        for round in 0..if batch == 2 { 3 } else { 1 } {
            let mut random = Random(1000 * batch as u64 + round);
            let tasks = tasks(batch, &mut random);
            let want: Vec<Text> = tasks.iter().map(|task| alone(&mut single, task)).collect();
            let mut turn = 0;
            let in_turn = &mut |left: usize| {
                turn += 1;
                turn % left
            };
            let label = format!("{batch} runs, {steps_ahead} ahead, round {round}");
            assert_eq!(together(&mut engine, &tasks, in_turn), want, "{label}, in turn");
            let any = &mut |left| random.below(left);
            assert_eq!(together(&mut engine, &tasks, any), want, "{label}, any order");
        }
    }
}

#[test]
fn runs_that_are_stopped_or_left_anywhere_disturb_no_other_and_leave_the_state_of_a_cold_run() {
    let golden = Golden::open("generic");
    let mut single = golden.engine(exact(), options());
    for (run_ahead, steps_ahead) in [(1, 0), (1, 1), (4, 3)] {
        let base = EngineOptions { batch: 5, run_ahead, steps_ahead, ..options() };
        let mut engine = golden.engine(exact(), base);
        let mut random = Random(steps_ahead as u64);
        let tasks = tasks(40, &mut random);
        let want: Vec<Text> = tasks.iter().map(|task| alone(&mut single, task)).collect();
        let mut waiting = (0..tasks.len()).rev().collect::<Vec<_>>();
        let mut running: Vec<(usize, Run, Vec<Progress>)> = Vec::new();
        while !(waiting.is_empty() && running.is_empty()) {
            if running.len() < 5
                && let Some(index) = waiting.pop()
            {
                let task = &tasks[index];
                let sequence = engine.open().unwrap();
                let run = engine.start(sequence, &task.prompt, task.generation.clone()).unwrap();
                running.push((index, run, Vec::new()));
                continue;
            }
            let at = random.below(running.len());
            let (index, run, seen) = &mut running[at];
            let sequence = run.sequence();
            match random.below(24) {
                0 => {
                    engine.cancel(run).unwrap();
                    assert_eq!(engine.advance(run).unwrap(), None);
                    assert_eq!(seen[..], want[*index].progress[..seen.len()], "task {index}");
                    let ids = engine.tokens(sequence).unwrap().to_vec();
                    let last = seen.last().and_then(Progress::token);
                    let tokens = seen.iter().filter(|p| p.token().is_some()).count();
                    let prompt = &tasks[*index].prompt[..run.prefilled()];
                    assert_eq!(ids.len(), prompt.len() + tokens.saturating_sub(1));
                    assert!(ids.starts_with(prompt));
                    if let Some(last) = last {
                        assert_eq!(engine.pending(sequence).unwrap(), Some(last));
                    }
                    if !ids.is_empty() && ids.len() < CONTEXT {
                        engine.step(sequence, 17).unwrap();
                        let got = engine.logits(sequence).unwrap();
                        // Chunks and steps sum in different orders.
                        let difference = max_difference(&got, &cold_step(&mut single, &ids, 17));
                        let place = format!("task {index}, {steps_ahead} ahead, {}", ids.len());
                        assert!(difference <= EXACT_LOGIT, "{place}: {difference:e}");
                    }
                }
                // Left without a word.
                1 => {}
                _ => {
                    if let Some(progress) = engine.advance(run).unwrap() {
                        seen.push(progress);
                        continue;
                    }
                    let got = Text { progress: seen.split_off(0), finish: run.finish() };
                    assert_eq!(got, want[*index], "task {index}, {steps_ahead} ahead");
                }
            }
            running.remove(at);
            engine.close(sequence);
        }
    }
}

#[test]
fn a_run_can_be_saved_in_the_middle_and_goes_on() {
    let golden = Golden::open("odd");
    for steps_ahead in [0, 2] {
        let base = EngineOptions { batch: 3, run_ahead: 2, steps_ahead, ..options() };
        let mut engine = golden.engine(exact(), base);
        let task = Task {
            prompt: golden.prompts.prompts[1].clone(),
            generation: Generation { limit: 20, ..Generation::default() },
        };
        let want = alone(&mut engine, &task);
        let sequence = engine.open().unwrap();
        let mut run = engine.start(sequence, &task.prompt, task.generation.clone()).unwrap();
        let mut got = Vec::new();
        while let Some(progress) = engine.advance(&mut run).unwrap() {
            got.push(progress);
            let saved = engine.snapshot(sequence).unwrap();
            assert_eq!(saved.tokens(), engine.tokens(sequence).unwrap());
            let copy = engine.open().unwrap();
            engine.restore(copy, &saved).unwrap();
            if let Some(pending) = engine.pending(copy).unwrap() {
                // The next token of the copy is the run's own.
                engine.step(copy, pending).unwrap();
                let next = argmax(&engine.logits(copy).unwrap()[..engine.shape().vocab_used]);
                let index = got.len();
                if let Some(Progress::Token(chosen)) =
                    want.progress.get(index).filter(|_| run.produced() > 0)
                {
                    assert_eq!(chosen.id as usize, next, "{steps_ahead} ahead, {index}");
                }
            }
            engine.close(copy);
        }
        assert_eq!(got, want.progress);
    }
}

#[test]
fn a_run_whose_sequence_was_changed_ends_with_an_error() {
    let golden = Golden::open("generic");
    let mut engine = golden.engine(exact(), EngineOptions { batch: 2, ..options() });
    type Change = fn(&mut Engine, lily_model::engine::SequenceId);
    let changes: [Change; 4] = [
        |engine, sequence| engine.step(sequence, 3).unwrap(),
        |engine, sequence| engine.prefill(sequence, &[3, 4], PrefillEnd::More).unwrap(),
        |engine, sequence| {
            let saved = engine.snapshot(sequence).unwrap();
            engine.restore(sequence, &saved).unwrap();
        },
        |engine, sequence| {
            engine.close(sequence);
            assert_eq!(engine.open().unwrap(), sequence);
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let sequence = engine.open().unwrap();
        let mut run = engine.start(sequence, &[1, 2, 3], Generation::default()).unwrap();
        for _ in 0..4 {
            engine.advance(&mut run).unwrap();
        }
        change(&mut engine, sequence);
        let result = engine.advance(&mut run);
        assert!(matches!(result, Err(EngineError::StaleRun(_))), "{index}: {result:?}");
        assert_eq!(engine.advance(&mut run).unwrap(), None, "an error ends the run");
        engine.close(sequence);
    }
}

#[test]
fn chunks_may_be_made_smaller_on_the_way() {
    let golden = Golden::open("heads");
    let mut engine = golden.engine(exact(), options());
    let sequence = engine.open().unwrap();
    let prompt = &golden.prompts.prompts[2];
    let generation = Generation { limit: 1, ..Generation::default() };
    let mut run = engine.start(sequence, prompt, generation).unwrap();
    let mut ends = Vec::new();
    for size in [5, 16, 0, 1000, 7] {
        run.set_chunk(size);
        match engine.advance(&mut run).unwrap() {
            Some(Progress::Prefilled(n)) => ends.push(n),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ends, [5, 21, 22, 38, 45]);
    let mut last = None;
    while let Some(progress) = engine.advance(&mut run).unwrap() {
        last = progress.token().or(last);
    }
    assert_eq!(last, Some(golden.prompts.greedy[2][0]));
}

#[test]
fn log_probabilities_are_those_of_the_logits_whatever_the_sampling() {
    let golden = Golden::open("generic");
    let mut engine = golden.engine(exact(), options());
    let prompt = &golden.prompts.prompts[1];
    let sequence = engine.open().unwrap();
    engine.prefill(sequence, prompt, PrefillEnd::Logits).unwrap();
    let logits = engine.logits(sequence).unwrap();
    engine.close(sequence);
    let used = &logits[..engine.shape().vocab_used];
    let total: f64 = used.iter().map(|&l| f64::from(l).exp()).sum();
    let want = |id: u32| (f64::from(used[id as usize]).exp() / total).ln() as f32;
    let forced = 9;
    let mut hot = Sampling { temperature: 0.3, top_k: 1, ..Sampling::greedy() };
    hot.logit_bias.insert(forced, 100.0);
    for (sampling, id) in [(Sampling::greedy(), argmax(used) as u32), (hot, forced)] {
        let sequence = engine.open().unwrap();
        let generation =
            Generation { limit: 1, sampling, logprobs: Some(4), ..Generation::default() };
        let mut run = engine.start(sequence, prompt, generation).unwrap();
        let mut chosen = None;
        while let Some(progress) = engine.advance(&mut run).unwrap() {
            if let Progress::Token(token) = progress {
                chosen = Some(token);
            }
        }
        engine.close(sequence);
        let chosen = chosen.unwrap();
        let logprobs = chosen.logprobs.unwrap();
        assert_eq!(chosen.id, id);
        assert!((logprobs.chosen - want(id)).abs() < 1e-4, "{logprobs:?}");
        assert_eq!(logprobs.top.len(), 4);
        assert_eq!(logprobs.top[0].0 as usize, argmax(used));
        for (id, logprob) in logprobs.top {
            assert!((logprob - want(id)).abs() < 1e-4, "{id}: {logprob}");
        }
    }
}

/// Leads through a list of sets, one a token; an empty set is an error, a missing one free.
#[derive(Clone, Debug)]
struct Path {
    sets: Vec<Option<Vec<u32>>>,
    at: usize,
}

impl Constraint for Path {
    fn mask(&mut self, mask: &mut TokenMask) -> Result<Allowed, ConstraintError> {
        assert!(mask.words().iter().all(|word| *word == 0), "a mask comes empty");
        match self.sets.get(self.at) {
            None => Err(ConstraintError("nothing can follow".into())),
            Some(None) => Ok(Allowed::All),
            Some(Some(ids)) => {
                ids.iter().for_each(|&id| mask.allow(id));
                Ok(Allowed::Masked)
            }
        }
    }

    fn accept(&mut self, id: u32) -> Result<(), ConstraintError> {
        let set = self.sets[self.at].as_ref();
        self.at += 1;
        match set {
            Some(ids) if !ids.contains(&id) => Err(ConstraintError("a token too many".into())),
            _ => Ok(()),
        }
    }

    fn boxed(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn a_constraint_is_kept_token_by_token_beside_other_runs() {
    let golden = Golden::open("heads");
    let base = EngineOptions { batch: 2, run_ahead: 2, steps_ahead: 2, ..options() };
    let mut engine = golden.engine(exact(), base);
    let (prompt, greedy) = (&golden.prompts.prompts[1], &golden.prompts.greedy[1]);
    let other = Task {
        prompt: golden.prompts.prompts[2].clone(),
        generation: Generation { limit: 30, ..Generation::default() },
    };
    let alone_text = alone(&mut engine, &other);
    let sets = vec![None, None, Some(vec![7, 70, 400]), Some(vec![511]), Some(vec![2])];
    for sampling in [Sampling::greedy(), Sampling { temperature: 2.0, ..Sampling::greedy() }] {
        let is_greedy = sampling.is_plain_greedy();
        let constraint = Path { sets: sets.clone(), at: 0 };
        let task = Task {
            prompt: prompt.clone(),
            generation: Generation {
                limit: 30,
                stop_ids: vec![2],
                sampling,
                constraint: Some(constraint.boxed()),
                ..Generation::default()
            },
        };
        let both = [other.clone(), task];
        let mut turn = 0;
        let texts = together(&mut engine, &both, &mut |left| {
            turn += 1;
            turn % left
        });
        assert_eq!(texts[0], alone_text);
        let ids: Vec<u32> = texts[1].progress.iter().filter_map(Progress::token).collect();
        assert_eq!(ids.len(), 5);
        if is_greedy {
            assert_eq!(ids[..2], greedy[..2]);
        }
        assert!([7, 70, 400].contains(&ids[2]));
        assert_eq!((ids[3], texts[1].finish), (511, Some(Finish::Stop(2))));
    }
}

#[test]
fn a_constraint_without_a_way_on_ends_the_run_with_an_error() {
    let golden = Golden::open("generic");
    let mut engine = golden.engine(exact(), options());
    let result = |engine: &mut Engine, sets: Vec<Option<Vec<u32>>>| {
        let sequence = engine.open().unwrap();
        let constraint: Option<Box<dyn Constraint>> = Some(Box::new(Path { sets, at: 0 }));
        let generation = Generation { constraint, ..Generation::default() };
        let mut run = engine.start(sequence, &[1, 2, 3], generation).unwrap();
        let error = loop {
            match engine.advance(&mut run) {
                Ok(progress) => assert!(progress.is_some(), "it ends with an error"),
                Err(error) => break error,
            }
        };
        engine.close(sequence);
        error
    };
    let ended = result(&mut engine, vec![None, Some(vec![4])]);
    assert!(matches!(&ended, EngineError::Constraint(e) if e.0 == "nothing can follow"));
    let empty = result(&mut engine, vec![None, Some(Vec::new())]);
    assert!(matches!(empty, EngineError::Sampling(SamplingError::NothingLeft { .. })), "{empty}");
    engine.probe().unwrap();
}

/// The CPU, which can lose one control row on its way to the host.
struct Fragile {
    inner: Box<dyn Device>,
    loses: Arc<AtomicBool>,
}

impl Device for Fragile {
    forward_device!(inner: name, precision, allocate, compile, submit, wait, run_launch, read, write, buffers);

    fn fetched(&mut self, fetch: Fetch) -> Result<Fetch, DeviceError> {
        if self.loses.swap(false, Ordering::Relaxed) {
            return Err(DeviceError::Usage("a row is lost".into()));
        }
        self.inner.fetched(fetch)
    }
}

#[test]
fn a_failure_while_a_run_is_put_to_sleep_is_that_runs_and_no_other() {
    let golden = Golden::open("generic");
    let base = EngineOptions { batch: 2, run_ahead: 2, steps_ahead: 2, ..options() };
    let loses = Arc::new(AtomicBool::new(false));
    let device = Fragile { inner: exact(), loses: Arc::clone(&loses) };
    let mut engine = golden.engine(Box::new(device), base);
    let task = Task {
        prompt: golden.prompts.prompts[1].clone(),
        generation: Generation { limit: 9, logprobs: Some(1), ..Generation::default() },
    };
    let want = alone(&mut engine, &task);
    let asleep = engine.open().unwrap();
    let mut ahead = engine.start(asleep, &[1, 2, 3], Generation::default()).unwrap();
    for _ in 0..4 {
        engine.advance(&mut ahead).unwrap();
    }
    loses.store(true, Ordering::Relaxed);
    assert_eq!(alone(&mut engine, &task), want);
    assert!(!loses.load(Ordering::Relaxed), "the row was lost beside the other run");
    let lost = engine.advance(&mut ahead);
    assert!(matches!(lost, Err(EngineError::Device(_))), "{lost:?}");
    assert_eq!(engine.advance(&mut ahead).unwrap(), None);
    engine.close(asleep);
    engine.probe().unwrap();
    assert_eq!(alone(&mut engine, &task), want);
}
