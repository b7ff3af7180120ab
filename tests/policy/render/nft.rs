//! Interpreter of `nft -f` input, after nft(8): commands change tables, sets, maps and chains, and a packet passes the
//! chain at the forward hook. It knows the statements that are printed, and refuses every other.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::net::IpAddr;
use std::vec::IntoIter;

use palisade::net::flow::{FlowKey, Protocol};
use palisade::render::Part;

use super::System;

/// Tables by name, with the family.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Nft {
    tables: BTreeMap<String, Table>,
}

#[derive(Debug, Default, PartialEq)]
struct Table {
    counters: BTreeSet<String>,
    sets: BTreeMap<String, Set>,
    chains: BTreeMap<String, Chain>,
}

/// Set, or map with verdicts.
#[derive(Debug, PartialEq)]
struct Set {
    declaration: Vec<String>,
    is_interval: bool,
    elements: BTreeMap<Interval, Option<Verdict>>,
}

/// First and last value, which are lists where values are concatenated.
type Interval = (Vec<Value>, Vec<Value>);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Number(u128),
    Text(String),
}

#[derive(Debug, Default, PartialEq)]
struct Chain {
    hook: Option<String>,
    rules: Vec<Rule>,
}

#[derive(Debug, PartialEq)]
struct Rule {
    matches: Vec<Match>,
    verdict: Verdict,
    comment: String,
}

#[derive(Debug, Clone, PartialEq)]
enum Verdict {
    Accept,
    Drop,
    Return,
    Jump(String),
    /// Jump from which no packet comes back to the chain.
    Goto(String),
    /// No verdict: the next rule is evaluated.
    Continue,
    /// Counter of a map for a key.
    Counter(String),
    /// Verdict of a map for a key.
    Map(Vec<Key>, String),
}

#[derive(Debug, PartialEq)]
enum Match {
    State(Vec<String>),
    /// Key among values, or not.
    OneOf {
        key: Vec<Key>,
        is_equal: bool,
        values: Values,
    },
}

#[derive(Debug, PartialEq)]
enum Values {
    Set(String),
    List(Vec<(Value, Value)>),
}

/// Part of a packet.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Key {
    Source,
    Destination,
    Protocol,
    ProtocolNumber,
    /// Port of the responder of the flow, of any protocol.
    FlowPort,
    /// Destination port of packets of this protocol; others do not match.
    Port(Protocol),
    Interface,
    Icmp6Type,
    /// Interface of the route back to the source.
    RouteBack,
    /// Type of the source or destination by the node's routes.
    AddressType,
}

type Tokens = Peekable<IntoIter<String>>;

/// Words of a text. Line ends and semicolons are `;`.
fn tokens(text: &str) -> Tokens {
    let mut tokens = Vec::new();
    for line in text.lines() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let end = match first {
                '#' => break,
                '{' | '}' | ',' | ';' => 1,
                '"' => 2 + rest[1..].find('"').expect("a closing quote"),
                _ => rest.find([' ', '\t', '{', '}', ',', ';']).unwrap_or(rest.len()),
            };
            tokens.push(rest[..end].to_owned());
            rest = rest[end..].trim_start();
        }
        tokens.push(";".to_owned());
    }
    tokens.into_iter().peekable()
}

fn next(tokens: &mut Tokens) -> String {
    tokens.next().expect("a further word")
}

fn expect(tokens: &mut Tokens, word: &str) {
    let found = next(tokens);
    assert_eq!(found, word, "before {:?}", tokens.take(8).collect::<Vec<_>>());
}

fn skip_ends(tokens: &mut Tokens) {
    while tokens.next_if(|token| token == ";").is_some() {}
}

impl Nft {
    /// Runs the commands of a file, which all must succeed, and checks references.
    fn run_file(&mut self, text: &str) {
        let mut tokens = tokens(text);
        loop {
            skip_ends(&mut tokens);
            let Some(verb) = tokens.next() else { break };
            if verb == "table" {
                self.table_block(&mut tokens);
            } else {
                self.command(&verb, &mut tokens);
            }
        }
        self.tables.values().for_each(Table::check);
    }

    fn table_block(&mut self, tokens: &mut Tokens) {
        let table = self.tables.entry(table_name(tokens)).or_default();
        expect(tokens, "{");
        loop {
            skip_ends(tokens);
            match next(tokens).as_str() {
                "}" => return,
                "chain" => {
                    let name = next(tokens);
                    expect(tokens, "{");
                    let mut chain = Chain::default();
                    loop {
                        skip_ends(tokens);
                        if tokens.next_if(|token| token == "}").is_some() {
                            break;
                        }
                        if tokens.peek().is_some_and(|token| token == "type") {
                            chain.hook = Some(statement(tokens).join(" "));
                            chain.hook.as_mut().unwrap().push_str(&statement(tokens).join(" "));
                        } else {
                            chain.rules.push(rule(tokens));
                        }
                    }
                    assert!(table.chains.insert(name, chain).is_none(), "a chain of that name exists");
                }
                "set" | "map" => {
                    let name = next(tokens);
                    table.add_set(name, tokens);
                }
                "counter" => {
                    assert!(table.counters.insert(next(tokens)), "the counter exists");
                    ["{", "}"].iter().for_each(|word| expect(tokens, word));
                }
                other => panic!("{other} in a table"),
            }
        }
    }

    fn command(&mut self, verb: &str, tokens: &mut Tokens) {
        let kind = next(tokens);
        let table_name = table_name(tokens);
        match (verb, kind.as_str()) {
            ("add", "table") => {
                self.tables.entry(table_name).or_default();
                return;
            }
            ("delete", "table") => {
                assert!(self.tables.remove(&table_name).is_some(), "no {table_name}");
                return;
            }
            _ => {}
        }
        let table = self.tables.get_mut(&table_name).expect("the table exists");
        let name = next(tokens);
        match (verb, kind.as_str()) {
            ("add", "chain") => {
                assert!(table.chains.insert(name, Chain::default()).is_none(), "the chain exists");
            }
            ("flush", "chain") => table.chains.get_mut(&name).expect("a chain").rules.clear(),
            ("delete", "chain") => {
                let chain = table.chains.remove(&name).expect("a chain");
                assert!(chain.rules.is_empty(), "{name} has rules");
            }
            ("add", "rule") => table.chains.get_mut(&name).expect("a chain").rules.push(rule(tokens)),
            ("add", "set" | "map") => table.add_set(name, tokens),
            ("delete", "set" | "map") => assert!(table.sets.remove(&name).is_some(), "no set {name}"),
            ("add", "counter") => assert!(table.counters.insert(name), "the counter exists"),
            ("delete", "counter") => assert!(table.counters.remove(&name), "no counter {name}"),
            (_, "element") => {
                let set = table.sets.get_mut(&name).unwrap_or_else(|| panic!("no set {name}"));
                for (key, verdict) in elements(tokens) {
                    if verb == "add" {
                        set.add(key, verdict);
                    } else {
                        assert_eq!(set.elements.remove(&key), Some(verdict), "{key:?} of {name}");
                    }
                }
            }
            (verb, kind) => panic!("{verb} {kind}"),
        }
    }
}

impl System for Nft {
    fn load(&mut self, parts: &[Part]) {
        parts.iter().for_each(|part| self.run_file(&part.text));
    }

    /// Runs the chain at the forward hook.
    fn passes(&self, flow: &FlowKey, _: [&str; 2]) -> bool {
        let name = if flow.src.is_ipv4() { "ip palisade" } else { "ip6 palisade" };
        let Some(table) = self.tables.get(name) else { return true };
        // Between the steps of a load no hook may lead to the table yet, or any more.
        let Some(forward) = table.chains.get("forward") else { return true };
        // A base chain that ends without a verdict has its policy, which is to accept.
        assert!(forward.hook.as_ref().unwrap().contains("policy accept"));
        table.run("forward", flow) != Some(Verdict::Drop)
    }
}

fn table_name(tokens: &mut Tokens) -> String {
    format!("{} {}", next(tokens), next(tokens))
}

impl Table {
    fn add_set(&mut self, name: String, tokens: &mut Tokens) {
        let mut set = Set { declaration: Vec::new(), is_interval: false, elements: BTreeMap::new() };
        expect(tokens, "{");
        loop {
            skip_ends(tokens);
            match tokens.peek().unwrap().as_str() {
                "}" => break,
                "elements" => {
                    next(tokens);
                    expect(tokens, "=");
                    elements(tokens).into_iter().for_each(|(key, verdict)| set.add(key, verdict));
                }
                _ => {
                    let words = statement(tokens).join(" ");
                    set.is_interval |= words == "flags interval";
                    set.declaration.push(words);
                }
            }
        }
        next(tokens);
        assert!(self.sets.insert(name, set).is_none(), "the set exists");
    }

    /// Checks that every name stands for something.
    fn check(&self) {
        let check_verdict = |verdict: &Verdict| match verdict {
            Verdict::Counter(name) => assert!(self.counters.contains(name), "no counter {name}"),
            Verdict::Jump(chain) | Verdict::Goto(chain) => {
                assert!(self.chains.contains_key(chain), "no chain {chain}");
            }
            Verdict::Map(_, map) => assert!(self.sets.contains_key(map), "no map {map}"),
            _ => {}
        };
        for rule in self.chains.values().flat_map(|chain| &chain.rules) {
            check_verdict(&rule.verdict);
            for one in &rule.matches {
                if let Match::OneOf { values: Values::Set(set), .. } = one {
                    assert!(self.sets.contains_key(set), "no set {set}");
                }
            }
        }
        self.sets.values().flat_map(|set| set.elements.values().flatten()).for_each(check_verdict);
    }

    fn run(&self, chain: &str, flow: &FlowKey) -> Option<Verdict> {
        for rule in &self.chains[chain].rules {
            if !rule.matches.iter().all(|one| self.matches(one, flow)) {
                continue;
            }
            let verdict = match &rule.verdict {
                Verdict::Map(key, map) => {
                    let key = values_of(key, flow).expect("a key");
                    let Some(verdict) = self.sets[map].elements.get(&(key.clone(), key)) else { continue };
                    verdict.as_ref().expect("maps have verdicts")
                }
                verdict => verdict,
            };
            match verdict {
                Verdict::Return => return None,
                Verdict::Continue => {}
                Verdict::Goto(chain) => return self.run(chain, flow),
                Verdict::Jump(chain) => {
                    if let Some(verdict) = self.run(chain, flow) {
                        return Some(verdict);
                    }
                }
                verdict => return Some(verdict.clone()),
            }
        }
        None
    }

    fn matches(&self, one: &Match, flow: &FlowKey) -> bool {
        match one {
            // The flow is new.
            Match::State(states) => states.iter().any(|state| state == "new"),
            Match::OneOf { key, is_equal, values } => {
                let Some(key) = values_of(key, flow) else { return false };
                let is_in = match values {
                    Values::Set(set) => self.sets[set].contains(&key),
                    Values::List(list) => {
                        list.iter().any(|(first, last)| *first <= key[0] && key[0] <= *last)
                    }
                };
                is_in == *is_equal
            }
        }
    }
}

impl Set {
    /// Adds an element. The kernel refuses an interval that overlaps another.
    fn add(&mut self, key: Interval, verdict: Option<Verdict>) {
        let before = self.elements.range(..=(key.1.clone(), vec![Value::Text(String::new())])).next_back();
        if let Some(((first, last), _)) = before {
            assert!(*last < key.0, "{key:?} overlaps {first:?}-{last:?}");
        }
        assert!(self.is_interval || key.0 == key.1, "{key:?} is a range");
        self.elements.insert(key, verdict);
    }

    fn contains(&self, key: &[Value]) -> bool {
        let end = (key.to_vec(), vec![Value::Text(String::new())]);
        self.elements.range(..=end).next_back().is_some_and(|((_, last), _)| last.as_slice() >= key)
    }
}

/// Words up to the end of a statement.
fn statement(tokens: &mut Tokens) -> Vec<String> {
    let words: Vec<String> =
        std::iter::from_fn(|| tokens.next_if(|token| token != ";" && token != "}")).collect();
    tokens.next_if(|token| token == ";");
    words
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// First and last value of a word: an address, a prefix, a range or a name.
fn value(word: &str) -> (Value, Value) {
    let both = |value: Value| (value.clone(), value);
    let single = |word: &str| {
        word.parse()
            .map(number)
            .or_else(|_| word.parse())
            .map_or_else(|_| Value::Text(word.to_owned()), Value::Number)
    };
    if let Some(text) = word.strip_prefix('"') {
        return both(Value::Text(text.trim_end_matches('"').to_owned()));
    }
    if let Ok(prefix) = word.parse::<ipnet::IpNet>() {
        assert_eq!(prefix.addr(), prefix.network(), "host bits");
        return (Value::Number(number(prefix.network())), Value::Number(number(prefix.broadcast())));
    }
    if let Some((first, last)) = word.split_once('-')
        && let (Value::Number(first), Value::Number(last)) = (single(first), single(last))
    {
        assert!(first < last, "{word}");
        return (Value::Number(first), Value::Number(last));
    }
    both(single(word))
}

/// Elements in braces.
fn elements(tokens: &mut Tokens) -> Vec<(Interval, Option<Verdict>)> {
    expect(tokens, "{");
    let mut list = Vec::new();
    loop {
        skip_ends(tokens);
        let (mut first, mut last) = (Vec::new(), Vec::new());
        loop {
            let (low, high) = value(&next(tokens));
            first.push(low);
            last.push(high);
            if tokens.next_if(|token| token == ".").is_none() {
                break;
            }
        }
        let verdict = tokens.next_if(|token| token == ":").map(|_| verdict(tokens));
        list.push(((first, last), verdict));
        skip_ends(tokens);
        match next(tokens).as_str() {
            "," => {}
            "}" => return list,
            other => panic!("{other} after an element"),
        }
    }
}

fn verdict(tokens: &mut Tokens) -> Verdict {
    match next(tokens).as_str() {
        "accept" => Verdict::Accept,
        "drop" => Verdict::Drop,
        "return" => Verdict::Return,
        "jump" => Verdict::Jump(next(tokens)),
        "goto" => Verdict::Goto(next(tokens)),
        name if name.starts_with('"') => Verdict::Counter(name.trim_matches('"').to_owned()),
        other => panic!("{other} is no verdict"),
    }
}

fn rule(tokens: &mut Tokens) -> Rule {
    let mut matches = Vec::new();
    let verdict = loop {
        match tokens.peek().unwrap().clone().as_str() {
            "accept" | "drop" | "return" | "jump" | "goto" => break verdict(tokens),
            ";" => break Verdict::Continue,
            "counter" => {
                ["counter", "name"].iter().for_each(|word| expect(tokens, word));
                if tokens.next_if(|token| token == "iifname").is_some() {
                    expect(tokens, "map");
                }
                next(tokens);
            }
            "ct" if ct_is_condition(tokens) => {
                next(tokens);
                matches.push(Match::State(list(tokens, next)));
            }
            _ => {
                let mut key = vec![one_key(tokens)];
                while tokens.next_if(|token| token == ".").is_some() {
                    key.push(one_key(tokens));
                }
                if tokens.next_if(|token| token == "vmap").is_some() {
                    break Verdict::Map(key, set_name(&next(tokens)));
                }
                let is_equal = tokens.next_if(|token| token == "!=").is_none();
                let values = if tokens.peek().unwrap().starts_with('@') {
                    Values::Set(set_name(&next(tokens)))
                } else {
                    Values::List(list(tokens, |tokens| value(&next(tokens))))
                };
                matches.push(Match::OneOf { key, is_equal, values });
            }
        }
    };
    let comment = match statement(tokens).as_slice() {
        [] => String::new(),
        [word, comment] if word == "comment" => comment.clone(),
        other => panic!("{other:?} after a verdict"),
    };
    Rule { matches, verdict, comment }
}

fn set_name(word: &str) -> String {
    word.strip_prefix('@').expect("a set").to_owned()
}

/// One value, several with commas, or several in braces.
fn list<T>(tokens: &mut Tokens, mut one: impl FnMut(&mut Tokens) -> T) -> Vec<T> {
    let is_braced = tokens.next_if(|token| token == "{").is_some();
    let mut values = vec![one(tokens)];
    while tokens.next_if(|token| token == ",").is_some() {
        values.push(one(tokens));
    }
    if is_braced {
        expect(tokens, "}");
    }
    values
}

/// Takes `ct`, and tells whether a condition of the flow follows it, in place of a part of its tuples.
fn ct_is_condition(tokens: &mut Tokens) -> bool {
    let rest: Vec<String> = tokens.clone().take(2).collect();
    let is_condition = matches!(rest[1].as_str(), "state" | "direction");
    if is_condition {
        next(tokens);
    }
    is_condition
}

fn one_key(tokens: &mut Tokens) -> Key {
    let first = next(tokens);
    if first == "ct" {
        let words = [next(tokens), next(tokens)];
        // Of a flow: addresses before translation of its source, and after translation of its destination.
        return match words.each_ref().map(String::as_str) {
            ["original", "protocol"] => Key::ProtocolNumber,
            ["reply", "proto-src"] => Key::FlowPort,
            ["original", "ip" | "ip6"] => {
                expect(tokens, "saddr");
                Key::Source
            }
            ["reply", "ip" | "ip6"] => {
                expect(tokens, "saddr");
                Key::Destination
            }
            other => panic!("ct {other:?} is no key"),
        };
    }
    if first == "iifname" {
        return Key::Interface;
    }
    match (first.as_str(), next(tokens).as_str()) {
        ("ip" | "ip6", "saddr") => Key::Source,
        ("ip" | "ip6", "daddr") => Key::Destination,
        ("meta", "l4proto") => Key::Protocol,
        ("tcp", "dport") => Key::Port(Protocol::TCP),
        ("udp", "dport") => Key::Port(Protocol::UDP),
        ("sctp", "dport") => Key::Port(Protocol::SCTP),
        ("icmpv6", "type") => Key::Icmp6Type,
        ("fib", "saddr" | "daddr") if tokens.next_if(|token| token == "type").is_some() => Key::AddressType,
        ("fib", "saddr") => {
            [".", "iif", "oif"].iter().for_each(|word| expect(tokens, word));
            Key::RouteBack
        }
        (first, second) => panic!("{first} {second} is no key"),
    }
}

/// Values of a packet; `None` where it has no such part.
fn values_of(keys: &[Key], flow: &FlowKey) -> Option<Vec<Value>> {
    let one = |key: &Key| match key {
        Key::Source => Some(Value::Number(number(flow.src))),
        Key::Destination => Some(Value::Number(number(flow.dst))),
        Key::Protocol => Some(Value::Text(flow.protocol.to_string().to_lowercase())),
        Key::ProtocolNumber => Some(Value::Number(flow.protocol.0.into())),
        Key::FlowPort => Some(Value::Number(flow.dst_port.into())),
        Key::Port(protocol) => (flow.protocol == *protocol).then(|| Value::Number(flow.dst_port.into())),
        Key::Interface | Key::Icmp6Type | Key::RouteBack | Key::AddressType => {
            panic!("{key:?} at the forward hook")
        }
    };
    keys.iter().map(one).collect()
}
