//! Thoughts in front of a format.

use super::*;
use crate::thought::CLOSE;

fn thought(budget: Option<usize>, tokenizer: &Tokenizer) -> Box<dyn Constraint> {
    let bound = bind(&Format::Regex("[xyz]+".into())).unwrap();
    Thought::bind(budget, Thinking::Open, tokenizer, Some(&bound)).unwrap()
}

fn go(constraint: &mut dyn Constraint, text: &str) {
    for byte in text.bytes() {
        assert!(allowed(constraint).contains(&u32::from(byte)), "{:?}", char::from(byte));
        constraint.accept(u32::from(byte)).unwrap();
    }
}

#[test]
fn r51_a_thought_is_free_and_the_format_begins_behind_its_seam() {
    let tokenizer = tokenizer();
    let mut thought = thought(None, &tokenizer);
    go(thought.as_mut(), "I think: {\"a\": <b>}\n");
    let next = allowed(thought.as_mut());
    // The turn does not end in the thought, and no call begins there.
    assert!(tokenizer.end_tokens().iter().all(|end| !next.contains(end)));
    assert!(!next.contains(&tokenizer.id_of("<|im_start|>").unwrap()));
    assert!(!next.contains(&tokenizer.id_of("<tool_call>").unwrap()));
    let close = tokenizer.id_of(CLOSE).unwrap();
    assert!(next.contains(&close));
    thought.accept(close).unwrap();
    for _ in 0..2 {
        assert_eq!(allowed(thought.as_mut()), [u32::from(b'\n')]);
        thought.accept(u32::from(b'\n')).unwrap();
    }
    assert_eq!(allowed(thought.as_mut()), b"xyz".map(u32::from));
    let mut text = written(thought.as_mut(), 3, &tokenizer);
    text.retain(|c| !"xyz".contains(c));
    assert_eq!(text, "");
}

#[test]
fn a_tag_that_is_spelled_ends_the_thought_as_well() {
    let tokenizer = tokenizer();
    let mut thought = thought(None, &tokenizer);
    go(thought.as_mut(), "a <</think");
    // What stands behind it comes in tokens of its own, so that the seam is always the same.
    let next = allowed(thought.as_mut());
    assert!(next.iter().all(|&id| {
        let bytes = tokenizer.token_bytes(id).unwrap();
        bytes == b">" || !bytes.starts_with(b">")
    }));
    go(thought.as_mut(), ">");
    for _ in 0..2 {
        assert_eq!(allowed(thought.as_mut()), [u32::from(b'\n')]);
        thought.accept(u32::from(b'\n')).unwrap();
    }
    assert_eq!(allowed(thought.as_mut()), b"xyz".map(u32::from));
}

#[test]
fn r49_a_budget_binds_in_front_of_a_format() {
    let tokenizer = tokenizer();
    let mut thought = thought(Some(3), &tokenizer);
    go(thought.as_mut(), "abc");
    let mut closing = vec![u32::from(b'\n'), tokenizer.id_of(CLOSE).unwrap()];
    closing.extend([u32::from(b'\n'); 2]);
    for id in closing {
        assert_eq!(allowed(thought.as_mut()), [id]);
        thought.accept(id).unwrap();
    }
    assert_eq!(allowed(thought.as_mut()), b"xyz".map(u32::from));
}

#[test]
fn r52_without_a_thought_the_format_binds_at_once() {
    let tokenizer = tokenizer();
    let bound = bind(&Format::Regex("[xyz]+".into())).unwrap();
    for thinking in [Thinking::Closed, Thinking::Absent] {
        let mut bound = Thought::bind(Some(5), thinking, &tokenizer, Some(&bound)).unwrap();
        assert_eq!(allowed(bound.as_mut()), b"xyz".map(u32::from));
    }
}
