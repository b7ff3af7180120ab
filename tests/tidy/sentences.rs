//! Beginnings of sentences in comments and documents: a doc comment begins with a noun that names the thing
//! or a verb that says what it does, and no sentence begins with what, who, how or where.

use crate::text::{files, name_of, parts, read, root};

/// Words that no sentence begins with.
const NEVER_FIRST: [&str; 4] = ["What", "Who", "How", "Where"];
/// Words that no doc comment begins with, besides.
const NEVER_FIRST_OF_ALL: [&str; 7] = ["Which", "When", "Whose", "Whoever", "Whatever", "Wherever", "Why"];

/// A comment or a paragraph: its first line, and its text.
struct Block {
    line: usize,
    is_doc: bool,
    text: String,
}

impl Block {
    fn append(&mut self, line: &str) {
        self.text.push(' ');
        self.text.push_str(line);
    }
}

/// Comments of a Rust file; lines below each other are one comment.
fn comments(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut last = 0;
    let mut is_code = false;
    for (line, is_doc, text) in parts(text).comments {
        if text.starts_with("```") {
            is_code = !is_code;
        } else if !is_code && !text.is_empty() {
            match blocks.last_mut() {
                Some(block) if last + 1 == line && block.is_doc == is_doc => block.append(&text),
                _ => blocks.push(Block { line, is_doc, text }),
            }
            last = line;
        }
    }
    blocks
}

/// Paragraphs, headings, list items and table cells of a document, without its code.
fn paragraphs(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut is_code, mut is_open) = (false, false);
    for (line, text) in (1..).zip(text.lines()) {
        let trimmed = text.trim();
        if trimmed.starts_with("```") {
            is_code = !is_code;
        }
        let is_text =
            !is_code && !trimmed.is_empty() && !trimmed.starts_with("```") && !text.starts_with("    ");
        let opens = trimmed.starts_with(['#', '|', '-', '*', '>'])
            || trimmed.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        if !is_text {
            is_open = false;
            continue;
        }
        if trimmed.starts_with('|') {
            blocks.extend(trimmed.split('|').map(|cell| Block {
                line,
                is_doc: false,
                text: cell.trim().to_owned(),
            }));
            is_open = false;
        } else if opens || !is_open {
            blocks.push(Block { line, is_doc: false, text: trimmed.to_owned() });
            is_open = true;
        } else if let Some(block) = blocks.last_mut() {
            block.append(trimmed);
        }
    }
    blocks
}

/// First words of the sentences of a text.
fn first_words(text: &str) -> impl Iterator<Item = &str> {
    let starts = std::iter::once(0).chain(text.match_indices(['.', '?', '!', ':']).map(|(at, _)| at + 1));
    starts.filter_map(|at| {
        let rest = &text[at..];
        // An end of a sentence has a space or a closing bracket behind it; an abbreviation has no capital.
        if at > 0 && !rest.starts_with([' ', ')', '*', '"']) {
            return None;
        }
        let rest = rest.trim_start_matches(|c: char| !c.is_alphanumeric());
        rest.split(|c: char| !c.is_alphanumeric()).next()
    })
}

fn offences(blocks: &[Block]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for block in blocks {
        for (number, word) in first_words(&block.text).enumerate() {
            let is_first_of_all = number == 0 && block.is_doc && NEVER_FIRST_OF_ALL.contains(&word);
            if NEVER_FIRST.contains(&word) || is_first_of_all {
                found.push((block.line, format!("a sentence begins with {word}")));
            }
        }
    }
    found
}

/// Documents at the root of the repository.
fn root_documents() -> impl Iterator<Item = std::path::PathBuf> {
    let entries = std::fs::read_dir(root()).expect("the repository").flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "md"))
}

#[test]
fn no_sentence_begins_with_what_who_how_or_where() {
    let rust = ["src", "tests", "bench"].into_iter().flat_map(|folder| files(folder, "rs"));
    let documents = files("docs", "md").into_iter().chain(root_documents());
    let blocks = rust.map(|path| (name_of(&path), comments(&read(&path))));
    let blocks = blocks.chain(documents.map(|path| (name_of(&path), paragraphs(&read(&path)))));
    let mut wrong = Vec::new();
    for (name, blocks) in blocks {
        wrong
            .extend(offences(&blocks).into_iter().map(|(line, offence)| format!("{name}:{line}: {offence}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn beginnings_of_sentences_are_found() {
    let text = "/// When it ends.\n/// How far, e.g. to the end. Where else?\nfn f() {} // what\n";
    assert_eq!(offences(&comments(text)).len(), 3);
    let text = "# Title\n\nA line\nthat goes on. Who reads?\n\n    How code looks\n\n| what | Where |\n";
    assert_eq!(offences(&paragraphs(text)).iter().map(|(line, _)| *line).collect::<Vec<_>>(), [3, 8]);
}
