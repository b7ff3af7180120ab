//! Waits of tests: a test waits for an event, so that a loaded machine makes it slower and never wrong. A sleep stands
//! in a loop that looks for the event; a time that has passed is no evidence.

use crate::text::{files, name_of, parts, read};

/// Words that begin a block in which a sleep is the pause between two looks, or between two things that a test does.
const LOOPS: [&str; 3] = ["while", "loop", "for"];
/// Outcomes of a probe that waited in vain: silence proves nothing. A dropped packet is counted under its reason.
const SILENCE: [&str; 2] = ["Outcome::TimedOut", "SILENCE"];

/// Blocks of code that are open at a place, by the words before their braces.
fn blocks_at(code: &str, at: usize) -> Vec<&str> {
    let mut open: Vec<(&str, u32)> = vec![];
    let (mut start, mut brackets) = (0, 0_u32);
    for (place, c) in code[..at].char_indices() {
        match c {
            '{' => {
                open.push((code[start..place].trim(), brackets));
                (start, brackets) = (place + 1, 0);
            }
            '}' => {
                brackets = open.pop().map_or(0, |(_, brackets)| brackets);
                start = place + 1;
            }
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets = brackets.saturating_sub(1),
            // Within brackets it is the length of an array.
            ';' if brackets == 0 => start = place + 1,
            _ => {}
        }
    }
    open.into_iter().map(|(words, _)| words).collect()
}

fn has_word(text: &str, words: &[&str]) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| words.contains(&word))
}

/// Whether a statement names the limit of a whole test: a constant, or minutes.
fn has_limit(statement: &str) -> bool {
    let is_constant = |word: &str| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    statement.contains("from_mins(")
        || statement.split(|c: char| !c.is_alphanumeric() && c != '_').any(is_constant)
}

/// Calls of `sleep` outside any loop, and assertions about elapsed time or silence, by line.
fn bare_waits(text: &str) -> Vec<(usize, &'static str)> {
    let code = parts(text).code;
    let line = |at: usize| code[..at].matches('\n').count() + 1;
    let sleeps = code.match_indices("sleep(").filter(|(at, _)| !code[..*at].ends_with("fn "));
    let bare = sleeps.filter(|(at, _)| !blocks_at(&code, *at).iter().any(|block| has_word(block, &LOOPS)));
    let mut found: Vec<_> = bare.map(|(at, _)| (line(at), "a sleep outside a loop")).collect();
    for (at, _) in code.match_indices("assert") {
        let statement = &code[at..at + code[at..].find(';').unwrap_or(0)];
        if statement.contains("elapsed() <") && !has_limit(statement) {
            found.push((line(at), "an assertion about elapsed time"));
        }
        if SILENCE.iter().any(|word| statement.contains(word)) {
            found.push((line(at), "silence as evidence"));
        }
    }
    found
}

#[test]
fn tests_wait_for_events_and_take_no_silence_for_a_denial() {
    let mut wrong = vec![];
    for file in files("tests", "rs") {
        let name = name_of(&file);
        // A probe's outcome is the subject of the laboratory's own tests.
        if name.starts_with("tests/tidy/") || name == "tests/netns/lab.rs" {
            continue;
        }
        wrong.extend(
            bare_waits(&read(&file)).into_iter().map(|(line, what)| format!("{name}:{line}: {what}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_bare_wait_is_found_and_a_poll_is_not() {
    let bare = "fn f() {\n    sleep(A);\n    assert!(start.elapsed() < limit);\n    assert_eq!(x, Outcome::TimedOut);\n}\n";
    assert_eq!(bare_waits(bare).iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 3, 4]);
    let poll = "fn f() {\n    while !done(&[7; 5]) {\n        assert!(start.elapsed() < TIMEOUT);\n        sleep(A);\n    }\n}\n";
    assert!(bare_waits(poll).is_empty());
}
