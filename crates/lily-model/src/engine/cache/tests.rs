//! The tree against what it was given, and what goes first when it is full.

use proptest::prelude::*;

use super::*;

/// Bytes of a token's rows, in two pieces.
const ROW: usize = 6;
const STATE: usize = 2000;

/// Rows of tokens, which tell both: token and position.
fn rows(tokens: &[u32], from: usize) -> Vec<Vec<u8>> {
    let of = |bytes: usize| {
        let each = |(at, &token): (usize, &u32)| {
            let mut row = vec![token as u8; bytes];
            row[0] = at as u8;
            row
        };
        tokens.iter().enumerate().skip(from).flat_map(each).collect()
    };
    vec![of(2), of(4)]
}

/// A state, which tells the tokens in front of it.
fn state(tokens: &[u32]) -> Vec<Vec<u8>> {
    let sum = tokens.iter().fold(7u64, |sum, &t| sum.wrapping_mul(31).wrapping_add(u64::from(t)));
    vec![sum.to_le_bytes().to_vec(), vec![tokens.len() as u8; STATE - 8]]
}

/// What an engine does behind `tokens`.
fn save(cache: &mut PrefixCache, tokens: &[u32]) -> bool {
    let Some(from) = cache.make_room(tokens, STATE as u64, ROW as u64) else { return false };
    cache.insert(tokens, from, rows(tokens, from), state(tokens));
    true
}

/// What an engine does with a prompt: gives the tokens that it need not read.
fn use_prompt(cache: &mut PrefixCache, prompt: &[u32]) -> usize {
    let found = cache.find(prompt);
    cache.note_use(&found);
    let mut whole: Vec<Vec<u8>> = vec![Vec::new(), Vec::new()];
    let mut end = 0;
    for run in cache.rows(&found) {
        assert_eq!(run.start, end, "runs follow each other");
        end = run.end;
        for (whole, piece) in whole.iter_mut().zip(run.rows) {
            whole.extend(piece);
        }
    }
    assert_eq!(end, found.tokens);
    assert!(found.tokens < prompt.len(), "one token is left to read");
    assert!(found.parted >= found.tokens);
    let prefix = &prompt[..found.tokens];
    assert_eq!(whole, rows(prefix, 0), "the rows are those of these tokens");
    match cache.state(&found) {
        Some(pieces) => assert_eq!(*pieces, state(prefix)),
        None => assert_eq!(found.tokens, 0),
    }
    found.tokens
}

/// Everything that must hold between two calls.
fn check(cache: &PrefixCache) {
    let figures = cache.figures();
    assert!(figures.bytes <= figures.capacity, "{figures:?}");
    let (bytes, states) = cache.count();
    assert_eq!((figures.bytes, figures.states), (bytes, states));
}

/// Tokens that tell a conversation and a position.
fn text(conversation: u32, tokens: std::ops::Range<u32>) -> Vec<u32> {
    tokens.map(|token| conversation * 1_000_000 + token).collect()
}

fn joined(parts: &[&[u32]]) -> Vec<u32> {
    parts.concat()
}

proptest! {
    #[test]
    fn a_prompt_goes_on_at_the_last_state_of_its_own_tokens_whatever_was_saved_and_lost(
        calls in prop::collection::vec(
            (any::<bool>(), prop::collection::vec(0u32..3, 1..24)),
            1..60,
        ),
        capacity in 1000u64..40_000,
    ) {
        let mut cache = PrefixCache::new(capacity);
        let mut saved: Vec<Vec<u32>> = Vec::new();
        for (is_save, tokens) in calls {
            if is_save {
                if save(&mut cache, &tokens) {
                    saved.push(tokens);
                }
            } else {
                let can = |s: &&Vec<u32>| {
                    s.len() < tokens.len() && tokens.starts_with(s) && cache.saved(s) == s.len()
                };
                let want = saved.iter().filter(can).map(Vec::len).max().unwrap_or(0);
                prop_assert_eq!(use_prompt(&mut cache, &tokens), want);
            }
            check(&cache);
        }
    }
}

#[test]
fn without_room_nothing_is_kept_and_nothing_is_lost() {
    let mut off = PrefixCache::new(0);
    assert!(off.is_off() && !save(&mut off, &[1, 2, 3]));
    // One state and a few rows.
    let mut cache = PrefixCache::new(5000);
    assert!(save(&mut cache, &text(1, 0..20)));
    assert!(!save(&mut cache, &text(2, 0..2000)), "its rows alone are too many");
    assert_eq!(cache.figures().refused, 1);
    assert_eq!(use_prompt(&mut cache, &text(1, 0..21)), 20);
    assert!(!save(&mut cache, &text(1, 0..20)), "it is there");
    assert_eq!(cache.figures().refused, 1);
    check(&cache);
}

#[test]
fn room_that_was_not_used_leaves_nothing_behind() {
    let mut cache = PrefixCache::new(9000);
    assert!(save(&mut cache, &text(1, 0..100)));
    // The only state goes for one behind it, which then cannot be read.
    assert!(cache.make_room(&text(1, 0..500), STATE as u64, ROW as u64).is_some());
    cache.give_up_room(&text(1, 0..500));
    check(&cache);
    cache.forget(&text(1, 0..500));
    assert_eq!(cache.count(), PrefixCache::new(0).count(), "an empty tree");
}

#[test]
fn states_that_led_to_bad_numbers_are_forgotten_and_others_stay() {
    let mut cache = PrefixCache::new(1 << 20);
    let (a, b) = (text(1, 0..100), joined(&[&text(1, 0..50), &text(2, 50..100)]));
    for tokens in [&a[..40], &a[..80], &b[..90]] {
        assert!(save(&mut cache, tokens));
    }
    cache.forget(&a);
    check(&cache);
    assert_eq!(use_prompt(&mut cache, &a), 0);
    assert_eq!(use_prompt(&mut cache, &b), 90);
}

/// R3: one long document, many short questions; the state at its end is never the first to go.
#[test]
fn r3_the_end_of_a_document_that_many_prompts_share_stays() {
    // Rows of one answer more, and four states.
    let document = text(0, 0..4000);
    let capacity = 4 * STATE + 5000 * (ROW + 4) + 8 * 512;
    let mut cache = PrefixCache::new(capacity as u64);
    for question in 1..=20 {
        let prompt = joined(&[&document, &text(question, 0..20)]);
        let cached = use_prompt(&mut cache, &prompt);
        if question >= 3 {
            assert_eq!(cached, 3968, "question {question}");
        }
        let parted = cache.find(&prompt).parted;
        let points = SavePoints::new(prompt.len(), &[], cached, parted);
        for point in points.ahead() {
            save(&mut cache, &prompt[..point]);
        }
        save(&mut cache, &joined(&[&prompt, &text(question, 100..400)]));
        check(&cache);
    }
    assert!(cache.figures().evicted > 10, "{:?}", cache.figures());
}

/// R16: what a conversation has left behind goes before the last state of another one.
#[test]
fn r16_parent_and_children_that_take_turns_all_stay_warm() {
    let lengths = [5000, 7000, 7000];
    let most: usize = lengths.iter().sum::<usize>() + 3 * 10 * 200;
    let capacity = most * (ROW + 4) + 9 * STATE + 60 * 512;
    let mut cache = PrefixCache::new(capacity as u64);
    let mut texts: Vec<Vec<u32>> = (0..3).map(|c| text(c as u32, 0..lengths[c] as u32)).collect();
    for turn in 0..10 {
        for (c, tokens) in texts.iter_mut().enumerate() {
            let cached = use_prompt(&mut cache, tokens);
            if turn > 0 {
                let read = tokens.len() - cached;
                assert!(10 * read <= tokens.len(), "turn {turn} of {c}: {cached} are there");
            }
            for back in [150, 20] {
                save(&mut cache, &tokens[..tokens.len() - back]);
            }
            let more = text(c as u32, tokens.len() as u32..tokens.len() as u32 + 150);
            tokens.extend(more);
            save(&mut cache, tokens);
            check(&cache);
            tokens.extend(text(c as u32, tokens.len() as u32..tokens.len() as u32 + 50));
        }
    }
    assert!(cache.figures().evicted > 30, "{:?}", cache.figures());
    // A fourth one that goes on for long has its room in the end: nothing stays for ever.
    let mut fourth = text(9, 0..100);
    for _ in 0..3000 {
        use_prompt(&mut cache, &fourth);
        save(&mut cache, &fourth);
        let length = fourth.len() as u32;
        fourth = if length < 8000 { text(9, 0..length + 100) } else { text(10, 0..100) };
    }
    check(&cache);
    let warm = texts.iter().filter(|tokens| cache.find(tokens).tokens > 0).count();
    assert!(warm < 3, "{warm} of those that nobody has asked for stay");
}

/// R18: the limit holds whatever comes.
#[test]
fn r18_two_hundred_prompts_of_two_thousand_tokens_stay_within_the_limit() {
    let mut cache = PrefixCache::new(256 << 10);
    for conversation in 0..200 {
        let prompt = text(conversation, 0..2000);
        use_prompt(&mut cache, &prompt);
        for at in [500, 1900, 2000] {
            save(&mut cache, &prompt[..at]);
            check(&cache);
        }
    }
    assert_eq!(use_prompt(&mut cache, &text(199, 0..2001)), 2000, "the last one is there");
}

#[test]
fn states_of_a_prompt_are_saved_where_others_will_part_from_it() {
    let points = |tokens, borders: &[usize], resumed, parted| {
        SavePoints::new(tokens, borders, resumed, parted).ahead().collect::<Vec<usize>>()
    };
    let none: [usize; 0] = [];
    // A chat: behind the system prompt, in front of the last message and of the answer, each at the
    // end of a block.
    let borders = [0, 600, 700, 900, 995];
    assert_eq!(points(1000, &borders, 0, 0), [576, 896, 960]);
    assert_eq!(points(1000, &borders, 640, 700), [896, 960]);
    assert_eq!(points(1000, &borders, 960, 990), none);
    // Where it parts from what is kept.
    assert_eq!(points(1000, &borders, 576, 800), [768, 896, 960]);
    // Enough is left behind the last one to be summed as a part of a longer chunk.
    assert_eq!(points(976, &[0, 600, 970], 0, 0), [576, 896]);
    assert_eq!(points(977, &[0, 600, 970], 0, 0), [576, 960]);
    // Without turns: near the end.
    assert_eq!(points(1000, &[], 0, 0), [960]);
    assert_eq!(points(1000, &[0, 300], 0, 0), [256, 960]);
    // R2: what is too short is read again.
    for tokens in 1..=80 {
        assert_eq!(points(tokens, &[0, 70], 0, 0), none, "{tokens}");
    }
    assert_eq!(points(81, &[0, 70], 0, 0), [64]);
}

#[test]
fn long_prompts_have_states_on_their_way() {
    let mut points = SavePoints::new(20_000, &[], 128, 0);
    let positions = (128..19_968).step_by(512).chain([19_968, 20_000]);
    let saved: Vec<usize> = positions.filter(|&at| points.reach(at, 20_000)).collect();
    assert_eq!(saved, [4224, 8320, 12_416, 16_512, 19_968]);
}
