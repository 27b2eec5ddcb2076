//! Whose turn it is among the requests that run.

use std::time::Duration;

/// What a request needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// A chunk of its prompt is read.
    Prefill,
    /// A token is generated.
    Decode,
}

/// A round: every request that generates has its turn, in the order of arrival, and then one that
/// reads its prompt. So a stream waits for one chunk at most, however many prompts are read, and for
/// one turn of every other stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Round {
    pub decode: Vec<u64>,
    pub prefill: Option<u64>,
}

/// Deals turns out.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// The last request that read a chunk.
    last: u64,
}

impl Turns {
    /// The next round among requests with rising numbers above 0. Prompts are read in turn, a chunk
    /// each.
    pub fn round(&mut self, requests: impl Iterator<Item = (u64, Stage)>) -> Round {
        let (mut decode, mut prefill) = (Vec::new(), Vec::new());
        for (id, stage) in requests {
            match stage {
                Stage::Decode => decode.push(id),
                Stage::Prefill => prefill.push(id),
            }
        }
        let next = prefill.iter().find(|&&id| id > self.last).or(prefill.first()).copied();
        self.last = next.unwrap_or(self.last);
        Round { decode, prefill: next }
    }
}

/// Tokens of a chunk beside running streams before anything was measured.
const FIRST_CHUNK: usize = 64;
/// Fewer tokens cost a prompt more than they spare the streams: the weights are read for each chunk.
pub(crate) const SMALLEST_CHUNK: usize = 16;

/// How long chunks take, and how large one may be beside running streams.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Longest time that a chunk should take.
    pause: Duration,
    seconds_per_token: Option<f64>,
}

impl Pace {
    pub fn new(pause: Duration) -> Self {
        Self { pause, seconds_per_token: None }
    }

    /// Notes that a chunk of `tokens` took `time`.
    pub fn note(&mut self, tokens: usize, time: Duration) {
        if tokens == 0 {
            return;
        }
        let new = time.as_secs_f64() / tokens as f64;
        self.seconds_per_token = Some(self.seconds_per_token.map_or(new, |old| (old + new) / 2.0));
    }

    /// Tokens of the next chunk: a power of two, so that few kinds of plans are built.
    pub fn chunk(&self) -> usize {
        let fitting = match self.seconds_per_token {
            None => FIRST_CHUNK as f64,
            // A cast of what is too large gives the largest number.
            Some(each) => self.pause.as_secs_f64() / each.max(1e-9),
        };
        let tokens = (fitting as usize).clamp(SMALLEST_CHUNK, 1 << 20);
        1 << tokens.ilog2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: Stage = Stage::Decode;
    const P: Stage = Stage::Prefill;

    #[test]
    fn between_two_chunks_every_stream_has_a_turn_and_prompts_are_read_in_turn() {
        let mut turns = Turns::default();
        let requests = [(1, P), (2, D), (3, P), (4, D), (9, P)];
        let prefilled: Vec<_> = (0..7)
            .map(|_| {
                let round = turns.round(requests.into_iter());
                assert_eq!(round.decode, [2, 4]);
                round.prefill.unwrap()
            })
            .collect();
        assert_eq!(prefilled, [1, 3, 9, 1, 3, 9, 1]);
        // One that came before the last is not passed over.
        let left = [(3, P), (4, D)];
        assert_eq!(turns.round(left.into_iter()), Round { decode: vec![4], prefill: Some(3) });
        assert_eq!(turns.round([(4, D)].into_iter()), Round { decode: vec![4], prefill: None });
        assert_eq!(turns.round(std::iter::empty()), Round { decode: vec![], prefill: None });
    }

    #[test]
    fn a_chunk_takes_no_longer_than_the_pause_as_far_as_it_may_shrink() {
        let pause = Duration::from_millis(250);
        let mut pace = Pace::new(pause);
        assert_eq!(pace.chunk(), FIRST_CHUNK);
        pace.note(0, pause);
        assert_eq!(pace.chunk(), FIRST_CHUNK, "nothing was read");
        for (tokens, millis, chunk) in
            [(512, 1024, 64), (512, 1, 128), (10, 10_000, 16), (4096, 1, 16), (4096, 1, 16)]
        {
            pace.note(tokens, Duration::from_millis(millis));
            assert_eq!(pace.chunk(), chunk, "{pace:?}");
        }
        for _ in 0..64 {
            pace.note(4096, Duration::from_millis(1));
        }
        assert_eq!(pace.chunk(), 1 << 19);
        assert_eq!(Pace { pause: Duration::ZERO, ..pace }.chunk(), SMALLEST_CHUNK);
        let endless = Pace { pause: Duration::MAX, seconds_per_token: Some(0.0) };
        assert_eq!(endless.chunk(), 1 << 20);
    }
}
