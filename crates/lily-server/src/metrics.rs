//! What `/metrics` tells.

use std::time::{Duration, Instant};

use lily_model::engine::CacheUse;
use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::update::{Finished, Update};

/// Of the body.
pub(crate) const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

type Labels<const N: usize> = [(&'static str, String); N];

/// Counts since the start.
pub(crate) struct Metrics {
    registry: Registry,
    waiting: Gauge,
    running: Gauge,
    memory: Family<Labels<1>, Gauge>,
    cache_limit: Gauge,
    cache_states: Gauge,
    cache_events: Family<Labels<1>, Counter>,
    responses: Family<Labels<2>, Counter>,
    choices: Family<Labels<1>, Counter>,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    completion_tokens: Counter,
    reasoning_tokens: Counter,
    first_token: Histogram,
    per_token: Histogram,
    whole: Histogram,
}

impl Metrics {
    pub fn new() -> Self {
        // From a millisecond to a quarter of an hour, and from 0.1 ms to 1.6 s.
        let seconds = || Histogram::new(exponential_buckets(0.001, 2.0, 21));
        let mut metrics = Self {
            registry: Registry::with_prefix("lily"),
            waiting: Gauge::default(),
            running: Gauge::default(),
            memory: Family::default(),
            cache_limit: Gauge::default(),
            cache_states: Gauge::default(),
            cache_events: Family::default(),
            responses: Family::default(),
            choices: Family::default(),
            prompt_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            completion_tokens: Counter::default(),
            reasoning_tokens: Counter::default(),
            first_token: seconds(),
            per_token: Histogram::new(exponential_buckets(0.0001, 2.0, 15)),
            whole: seconds(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let to = &mut self.registry;
        to.register("requests_waiting", "Choices that wait for the model", self.waiting.clone());
        to.register("requests_running", "Choices that the model works on", self.running.clone());
        to.register_with_unit("memory", "Memory by kind", Unit::Bytes, self.memory.clone());
        to.register_with_unit(
            "cache_limit",
            "Most bytes of kept beginnings of prompts",
            Unit::Bytes,
            self.cache_limit.clone(),
        );
        to.register("cache_states", "States that prompts can go on at", self.cache_states.clone());
        to.register(
            "cache_events",
            "Prompts that went on at a kept state or did not, and states by what became of them",
            self.cache_events.clone(),
        );
        to.register("http_responses", "Responses by route and status", self.responses.clone());
        to.register(
            "choices",
            "Choices by the reason that they ended for; failed and left are no finish reasons",
            self.choices.clone(),
        );
        to.register("prompt_tokens", "Tokens of prompts", self.prompt_tokens.clone());
        to.register(
            "cached_prompt_tokens",
            "Tokens of prompts that did not have to be read again",
            self.cached_tokens.clone(),
        );
        to.register("completion_tokens", "Tokens generated", self.completion_tokens.clone());
        to.register(
            "reasoning_tokens",
            "Tokens generated inside of thoughts",
            self.reasoning_tokens.clone(),
        );
        to.register_with_unit(
            "time_to_first_token",
            "From the request to the first text of a choice, waiting counted",
            Unit::Seconds,
            self.first_token.clone(),
        );
        to.register_with_unit(
            "time_per_token",
            "Between two tokens of a choice, on average",
            Unit::Seconds,
            self.per_token.clone(),
        );
        to.register_with_unit(
            "choice_duration",
            "From the request to the end of a choice, waiting counted",
            Unit::Seconds,
            self.whole.clone(),
        );
    }

    /// Counts a response.
    pub fn response(&self, route: &str, status: u16) {
        let labels = [("route", route.to_owned()), ("status", status.to_string())];
        self.responses.get_or_create(&labels).inc();
    }

    /// All of it as text; the arguments are those of this moment.
    pub fn text(&self, running: usize, waiting: usize, cache: &CacheUse) -> Option<String> {
        self.note_cache(cache);
        self.running.set(i64::try_from(running).unwrap_or(i64::MAX));
        self.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        if let Some(bytes) = resident_bytes() {
            let labels = [("kind", "resident".to_owned())];
            self.memory.get_or_create(&labels).set(bytes);
        }
        let mut text = String::new();
        prometheus_text::encode(&mut text, &self.registry).ok()?;
        Some(text)
    }

    fn note_cache(&self, cache: &CacheUse) {
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.memory.get_or_create(&[("kind", "cache".to_owned())]).set(whole(cache.bytes));
        self.cache_limit.set(whole(cache.capacity));
        self.cache_states.set(whole(cache.states as u64));
        for (event, number) in [
            ("hit", cache.hits),
            ("miss", cache.misses),
            ("saved", cache.saved),
            ("evicted", cache.evicted),
            ("refused", cache.refused),
        ] {
            let counter = self.cache_events.get_or_create(&[("event", event.to_owned())]);
            counter.inc_by(number.saturating_sub(counter.get()));
        }
    }

    fn ended(&self, reason: &str) {
        self.choices.get_or_create(&[("reason", reason.to_owned())]).inc();
    }
}

/// Bytes of this process in memory; `None` where the system does not say.
fn resident_bytes() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Times one choice.
#[derive(Clone, Copy)]
pub(crate) struct Meter {
    start: Instant,
    first: Option<Instant>,
    has_ended: bool,
}

impl Meter {
    pub fn new(start: Instant) -> Self {
        Self { start, first: None, has_ended: false }
    }

    /// Notes an update.
    pub fn note(&mut self, update: &Update, metrics: &Metrics) {
        match update {
            Update::Reasoning(_) | Update::Content(_) | Update::CallStarted { .. }
                if self.first.is_none() =>
            {
                self.first = Some(Instant::now());
                metrics.first_token.observe(self.start.elapsed().as_secs_f64());
            }
            Update::Finished(finished) => self.finished(finished, metrics),
            Update::Failed(_) => self.end("failed", metrics),
            _ => {}
        }
    }

    /// Nobody waits for the choice any more.
    pub fn left(&mut self, metrics: &Metrics) {
        self.end("left", metrics);
    }

    fn finished(&mut self, finished: &Finished, metrics: &Metrics) {
        metrics.prompt_tokens.inc_by(finished.prompt_tokens as u64);
        metrics.cached_tokens.inc_by(finished.cached_tokens as u64);
        metrics.completion_tokens.inc_by(finished.completion_tokens as u64);
        metrics.reasoning_tokens.inc_by(finished.reasoning_tokens as u64);
        let gaps = u32::try_from(finished.completion_tokens.saturating_sub(1)).unwrap_or(u32::MAX);
        if let Some(first) = self.first
            && gaps > 0
        {
            let each: Duration = first.elapsed() / gaps;
            metrics.per_token.observe(each.as_secs_f64());
        }
        self.end(finished.reason.name(), metrics);
    }

    fn end(&mut self, reason: &str, metrics: &Metrics) {
        if !std::mem::replace(&mut self.has_ended, true) {
            metrics.ended(reason);
            metrics.whole.observe(self.start.elapsed().as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lily_chat::FinishReason;

    #[test]
    fn what_happened_is_counted_once() {
        let metrics = Metrics::new();
        let mut meter = Meter::new(Instant::now());
        let text = Update::Reasoning("a".into());
        meter.note(&text, &metrics);
        meter.note(&text, &metrics);
        let finished = Finished {
            reason: FinishReason::Length,
            prompt_tokens: 7,
            cached_tokens: 4,
            completion_tokens: 5,
            reasoning_tokens: 3,
            unfinished_call: None,
        };
        meter.note(&Update::Finished(finished), &metrics);
        meter.left(&metrics);
        Meter::new(Instant::now()).left(&metrics);
        metrics.response("/v1/models", 401);
        let mut cache =
            CacheUse { capacity: 9, bytes: 8, states: 3, hits: 1, ..CacheUse::default() };
        metrics.text(1, 2, &cache).unwrap();
        cache.hits = 2;
        let text = metrics.text(1, 2, &cache).unwrap();
        for line in [
            "lily_memory_bytes{kind=\"cache\"} 8",
            "lily_cache_limit_bytes 9",
            "lily_cache_states 3",
            "lily_cache_events_total{event=\"hit\"} 2",
            "lily_cached_prompt_tokens_total 4",
            "lily_requests_running 1",
            "lily_requests_waiting 2",
            "lily_prompt_tokens_total 7",
            "lily_completion_tokens_total 5",
            "lily_reasoning_tokens_total 3",
            "lily_choices_total{reason=\"length\"} 1",
            "lily_choices_total{reason=\"left\"} 1",
            "lily_time_to_first_token_seconds_count 1",
            "lily_time_per_token_seconds_count 1",
            "lily_choice_duration_seconds_count 2",
            "lily_http_responses_total{route=\"/v1/models\",status=\"401\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}
