//! Modules of the library and the paths between them, read from the text: `mod` declarations, `use`
//! declarations, and paths in code.
//!
//! Code for tests is left out: files that only `#[cfg(test)]` declares, and items under that attribute. A
//! path leads to the module that defines the item, through re-exports. It is read as Rust reads it, as far as
//! this repository's code needs: no macro makes a `use`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use crate::text::{files, name_of, parts, read, root};

/// Segments of a module's path; none for the root of the crate.
pub(crate) type Path = Vec<String>;

/// A module's own text, read once.
#[derive(Default)]
pub(crate) struct Module {
    /// File below the root of the repository.
    pub(crate) file: String,
    /// Names that a `use` brings in, with the path behind each.
    names: BTreeMap<String, Path>,
    /// Paths behind `use path::*`.
    globs: Vec<Path>,
    /// Items that the module defines.
    items: BTreeSet<String>,
    /// Paths that the module mentions: `use` declarations but re-exports of its own modules, and paths in
    /// code.
    mentions: BTreeSet<Path>,
}

/// Modules of production code, by path.
pub(crate) struct Modules(BTreeMap<Path, Module>);

impl Modules {
    /// The library, beginning with `src/lib.rs`.
    pub(crate) fn of_library() -> &'static Modules {
        static LIBRARY: LazyLock<Modules> = LazyLock::new(Modules::read);
        &LIBRARY
    }

    fn read() -> Modules {
        let mut modules = Modules(BTreeMap::new());
        modules.add(&[], "src/lib.rs");
        assert!(modules.0.len() > 100, "{} modules were found", modules.0.len());
        modules
    }

    /// Files of production code.
    pub(crate) fn files() -> BTreeSet<String> {
        let modules = Modules::of_library().0.values();
        let mut production: BTreeSet<String> = modules.map(|module| module.file.clone()).collect();
        production.insert("src/main.rs".to_owned());
        production
    }

    fn add(&mut self, path: &[String], file: &str) {
        let tokens = without_tests(&tokens(&parts(&read(&root().join(file))).code));
        let mut reader = Reader {
            modules: vec![(path.to_vec(), Module { file: file.to_owned(), ..Module::default() }, 0)],
            ..Reader::default()
        };
        reader.read(&tokens);
        let children = reader.children;
        let (path, module, _) = reader.modules.pop().expect("the module of the file");
        self.0.insert(path, module);
        self.0.extend(reader.done);
        for child in children {
            let folder = folder_of(file);
            let name = child.last().expect("a child has a name").trim_start_matches("r#").to_owned();
            let beside = child[path_of_file(file).len()..].join("/");
            let candidates = [format!("{folder}/{beside}.rs"), format!("{folder}/{beside}/mod.rs")];
            let found = candidates.iter().find(|file| root().join(file).exists());
            let found = found.unwrap_or_else(|| panic!("mod {name} of {file} has no file"));
            self.add(&child, found);
        }
    }

    /// Uses of one module by another, with the path that leads to it: from, to, mention.
    pub(crate) fn uses(&self) -> Vec<(&Path, Path, &Path)> {
        let mut uses = Vec::new();
        for (path, module) in &self.0 {
            for mention in &module.mentions {
                if let Some(to) = self.resolve(path, mention, 0)
                    && to != *path
                {
                    uses.push((path, to, mention));
                }
            }
        }
        uses
    }

    pub(crate) fn file(&self, path: &Path) -> &str {
        &self.0[path].file
    }

    /// Module that defines the item behind a path; `None` for a path out of the crate.
    fn resolve(&self, from: &Path, mention: &[String], depth: usize) -> Option<Path> {
        // Re-exports lead on, and a path to itself would lead on for ever.
        if depth > 8 {
            return None;
        }
        let (mut at, rest) = self.start(from, mention)?;
        for (number, segment) in rest.iter().enumerate() {
            let child = [at.clone(), vec![segment.clone()]].concat();
            let module = &self.0[&at];
            if self.0.contains_key(&child) {
                at = child;
            } else if let Some(target) = module.names.get(segment) {
                let target = [target, &rest[number + 1..]].concat();
                return self.resolve(&at, &target, depth + 1).or(Some(at));
            } else if module.items.contains(segment) {
                return Some(at);
            } else {
                let through = |glob: &Path| {
                    let target = [glob, &rest[number..]].concat();
                    let found = self.resolve(&at, &target, depth + 1)?;
                    (self.0[&found].items.contains(segment) || number + 1 < rest.len()).then_some(found)
                };
                return module.globs.iter().find_map(through).or(Some(at.clone()));
            }
        }
        Some(at)
    }

    /// Module that a path begins at, and the segments that are left.
    fn start<'a>(&self, from: &Path, mention: &'a [String]) -> Option<(Path, &'a [String])> {
        let (first, mut rest) = mention.split_first()?;
        let mut at = from.clone();
        match first.as_str() {
            "crate" => return Some((Vec::new(), rest)),
            "self" => return Some((at, rest)),
            "super" => at.pop(),
            _ if self.0.contains_key(&[from.clone(), vec![first.clone()]].concat()) => {
                return Some((at, mention));
            }
            _ => return None,
        };
        while rest.first().is_some_and(|segment| segment == "super") {
            at.pop();
            rest = &rest[1..];
        }
        Some((at, rest))
    }
}

/// Code of a file without comments, contents of literals, spaces, and items for tests.
pub(crate) fn production_code(file: &str) -> String {
    without_tests(&tokens(&parts(&read(&root().join(file))).code)).concat()
}

/// Folder of the modules that a file declares.
fn folder_of(file: &str) -> String {
    let stem = file.trim_end_matches(".rs");
    match stem.rsplit_once('/') {
        Some((folder, "mod" | "lib" | "main")) => folder.to_owned(),
        _ => stem.to_owned(),
    }
}

/// Path of the module that a file holds.
pub(crate) fn path_of_file(file: &str) -> Path {
    folder_of(file).split('/').skip(1).map(str::to_owned).collect()
}

/// Words and punctuation of code; a lifetime is a word.
fn tokens(code: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut chars = code.chars().peekable();
    while let Some(first) = chars.next() {
        if first.is_whitespace() {
            continue;
        }
        let mut token = String::from(first);
        if first.is_alphanumeric() || first == '_' || first == '\'' {
            while let Some(next) = chars.next_if(|c| c.is_alphanumeric() || *c == '_') {
                token.push(next);
            }
        } else if first == ':' && chars.next_if_eq(&':').is_some() {
            token.push(':');
        }
        tokens.push(token);
    }
    tokens
}

/// Drops items under `#[cfg(test)]` and the like.
fn without_tests(tokens: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_attribute = tokens[at] == "#" && tokens.get(at + 1).is_some_and(|next| next == "[");
        if !is_attribute {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        let end = closing(tokens, at + 1);
        let words = &tokens[at..end];
        let has = |word: &str| words.iter().any(|token| token == word);
        at =
            if has("cfg") && has("test") && !has("not") && !has("any") { item_end(tokens, end) } else { end };
    }
    kept
}

/// Place behind the bracket that closes the one here.
fn closing(tokens: &[String], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// Place behind the item here, which ends with a block, a semicolon or a comma.
fn item_end(tokens: &[String], mut at: usize) -> usize {
    while at < tokens.len() {
        match tokens[at].as_str() {
            "#" => at = closing(tokens, at + 1),
            "{" => return closing(tokens, at),
            "(" | "[" => at = closing(tokens, at),
            ";" | "," => return at + 1,
            _ => at += 1,
        }
    }
    at
}

/// Reads one file; a module within the file is one of its own.
#[derive(Default)]
struct Reader {
    /// Modules that are open, with the depth of the braces around each.
    modules: Vec<(Path, Module, usize)>,
    /// Modules within the file that are closed.
    done: Vec<(Path, Module)>,
    /// Modules that the file declares, in files of their own.
    children: Vec<Path>,
    depth: usize,
    /// Names of re-exports, with their paths: mentioned only where other code of the module uses them.
    re_exports: Vec<(Path, String, Path)>,
}

const ITEMS: [&str; 8] = ["struct", "enum", "trait", "fn", "const", "static", "type", "union"];

impl Reader {
    fn here(&mut self) -> (&Path, &mut Module) {
        let (path, module, _) = self.modules.last_mut().expect("the module of the file");
        (path, module)
    }

    fn read(&mut self, tokens: &[String]) {
        let mut at = 0;
        while at < tokens.len() {
            let next = |by: usize| tokens.get(at + by).map_or("", String::as_str);
            at = match tokens[at].as_str() {
                "{" => {
                    self.depth += 1;
                    at + 1
                }
                "}" => {
                    self.close();
                    at + 1
                }
                "use" if next(1) != "<" => self.read_use(tokens, at),
                "mod" if next(2) == ";" => {
                    let child = [self.here().0.clone(), vec![next(1).to_owned()]].concat();
                    self.children.push(child);
                    at + 3
                }
                "mod" if next(2) == "{" => {
                    let (path, module) = self.here();
                    let inner = Module { file: module.file.clone(), ..Module::default() };
                    let path = [path.clone(), vec![next(1).to_owned()]].concat();
                    self.modules.push((path, inner, self.depth));
                    self.depth += 1;
                    at + 3
                }
                "!" if at > 0 && tokens[at - 1] == "macro_rules" => {
                    self.here().1.items.insert(next(1).to_owned());
                    at + 2
                }
                word if ITEMS.contains(&word) => {
                    let is_outermost = self
                        .modules
                        .last()
                        .is_some_and(|(.., depth)| self.depth == depth + usize::from(self.modules.len() > 1));
                    if is_outermost {
                        self.here().1.items.insert(next(1).to_owned());
                    }
                    at + 1
                }
                _ => self.read_path(tokens, at),
            };
        }
        self.mention_used_re_exports(tokens);
    }

    fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        if self.modules.len() > 1 && self.modules.last().is_some_and(|(.., depth)| *depth == self.depth) {
            let (path, module, _) = self.modules.pop().expect("more than one");
            self.done.push((path, module));
        }
    }

    /// A path in code, with two segments at least.
    fn read_path(&mut self, tokens: &[String], at: usize) -> usize {
        let is_word = |token: &String| token.starts_with(|c: char| c.is_alphabetic() || c == '_');
        let mut path = Vec::new();
        let mut end = at;
        while tokens.get(end).is_some_and(is_word) {
            path.push(tokens[end].clone());
            end += 1;
            if tokens.get(end).is_none_or(|token| token != "::") {
                break;
            }
            end += 1;
        }
        let is_continued = at > 0 && tokens[at - 1] == "::";
        // `pub(in path)` limits visibility, and imports nothing.
        let is_visibility = at > 1 && tokens[at - 1] == "in" && tokens[at - 2] == "(";
        if path.len() > 1 && !is_continued && !is_visibility {
            self.here().1.mentions.insert(path);
        }
        end.max(at + 1)
    }

    fn read_use(&mut self, tokens: &[String], at: usize) -> usize {
        let end = (at..tokens.len()).find(|at| tokens[*at] == ";").unwrap_or(tokens.len());
        let is_public = at > 0 && (tokens[at - 1] == "pub" || tokens[at - 1] == ")");
        let mut leaves = Vec::new();
        use_tree(&tokens[at + 1..end], &[], &mut leaves);
        let (here, module) = self.here();
        let here = here.clone();
        let mut re_exports = Vec::new();
        for (path, name) in leaves {
            let is_of_own_module = path[0] == "self" || !["crate", "super"].contains(&path[0].as_str());
            if name == "*" {
                module.globs.push(path.clone());
            } else {
                module.names.insert(name.clone(), path.clone());
            }
            if is_public && is_of_own_module {
                re_exports.push((here.clone(), name, path));
            } else {
                module.mentions.insert(path);
            }
        }
        self.re_exports.extend(re_exports);
        end + 1
    }

    /// A re-export of a module's own child is a use where code of the module uses the name, too.
    fn mention_used_re_exports(&mut self, tokens: &[String]) {
        let mut in_use = false;
        let mut words = BTreeSet::new();
        for token in tokens {
            in_use = if in_use { token != ";" } else { token == "use" };
            if !in_use {
                words.insert(token.as_str());
            }
        }
        for (path, name, target) in std::mem::take(&mut self.re_exports) {
            if let Some((_, module, _)) = self.modules.iter_mut().find(|(open, ..)| *open == path)
                && words.contains(name.as_str())
            {
                module.mentions.insert(target);
            }
        }
    }
}

/// Leaves of a `use` declaration: path and name.
fn use_tree(tokens: &[String], prefix: &[String], leaves: &mut Vec<(Path, String)>) {
    let mut path = prefix.to_vec();
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at].as_str() {
            "::" => {}
            "{" => {
                let inner = &tokens[at + 1..closing(tokens, at) - 1];
                let (mut start, mut depth) = (0, 0);
                for (place, token) in inner.iter().map(String::as_str).chain([","]).enumerate() {
                    match token {
                        "{" => depth += 1,
                        "}" => depth -= 1,
                        "," if depth == 0 => {
                            if start < place {
                                use_tree(&inner[start..place], &path, leaves);
                            }
                            start = place + 1;
                        }
                        _ => {}
                    }
                }
                return;
            }
            "*" => return leaves.push((path, "*".to_owned())),
            "as" => {
                let name = tokens.get(at + 1).cloned().unwrap_or_default();
                return leaves.push((path, name));
            }
            "self" if !path.is_empty() => {}
            word => path.push(word.to_owned()),
        }
        at += 1;
    }
    if let Some(name) = path.last().cloned() {
        leaves.push((path, name));
    }
}

#[test]
fn a_use_declaration_is_read_leaf_by_leaf() {
    let mut leaves = Vec::new();
    use_tree(&tokens("crate::a::{self, b::{C, D as E}, f::*}"), &[], &mut leaves);
    let leaves: Vec<_> = leaves.iter().map(|(path, name)| (path.join("::"), name.as_str())).collect();
    let expected =
        [("crate::a", "a"), ("crate::a::b::C", "C"), ("crate::a::b::D", "E"), ("crate::a::f", "*")];
    assert_eq!(leaves, expected.map(|(path, name)| (path.to_owned(), name)));
}

#[test]
fn items_for_tests_are_left_out() {
    let code = "use a::B; #[cfg(test)] #[path = \"x\"] mod tests; #[cfg(test)] fn f() { g(); } #[cfg(not(test))] fn h() {}";
    assert_eq!(without_tests(&tokens(code)).join(" "), "use a :: B ; fn h ( ) { }");
}

#[test]
fn every_production_file_is_a_module() {
    let production = Modules::files();
    let is_for_tests = |name: &str| !production.contains(name);
    let all: Vec<String> = files("src", "rs").iter().map(|path| name_of(path)).collect();
    let left_out: Vec<&String> = all.iter().filter(|name| is_for_tests(name)).collect();
    assert!(left_out.len() < all.len() / 4, "taken for tests: {left_out:#?}");
}
