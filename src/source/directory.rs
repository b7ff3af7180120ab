//! The configured directory of policies: objects as last read, their compiler, and what of it the switch has.
//!
//! A turn lists the directory, reads the files whose stamps differ and that are complete, gives the compiler the objects that
//! differ, and publishes the difference of the tables. All files are taken or none: where one is wrong, the switch keeps
//! the tables that it has, and what was read waits for the turn in which everything is right.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::files::{self, Listing, LoadError, Stamp};
use super::load::{LoadOptions, Rejected, compiled_tables, is_tables};
use super::manifests::{self, Content, Manifests};
use super::watch::Watch;
use crate::config::Policy;
use crate::control::protocol::PolicyOrigin;
use crate::control::{ApiError, CoverageCheck, Switch};
use crate::ids::Generation;
use crate::policy::parse;
use crate::policy::{Compiler, Options};
use crate::tables::{RuleTables, TablesDiff, TablesError};
use crate::threads;

/// A file that has gone counts as gone after this time: an editor that moves the old file away before it writes the new one leaves
/// a gap, and so does who replaces a directory.
const GONE_AFTER: Duration = Duration::from_millis(50);
/// Longest wait at the start for files that are being written.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Time between two attempts to publish tables that would have closed all pods: pods come and go.
const RETRY: Duration = Duration::from_secs(1);

/// The configured directory (or file) of policies.
#[derive(Debug)]
pub struct PolicyDirectory {
    root: PathBuf,
    options: LoadOptions,
    watch: Watch,
    /// Files whose objects are in `manifests`.
    taken: BTreeMap<PathBuf, Stamp>,
    /// Files that have been read and not been taken: another one is wrong, or they are.
    read: BTreeMap<PathBuf, Read>,
    manifests: Manifests,
    tables: Tables,
    /// The generation with which the switch got exactly these tables.
    published: Option<Generation>,
    /// Since when something is missing that was there.
    gone_since: Option<Instant>,
    /// When a file may be complete that is not yet, or has gone.
    look_at: Option<Instant>,
    is_asked: bool,
    /// The last rejection, as it was told.
    told: Option<Vec<String>>,
    #[cfg(test)]
    before_compile: fn(),
}

/// Objects and errors of the files.
#[derive(Debug, Default)]
enum Tables {
    /// Not known: nothing has been read, or the compiler has failed.
    #[default]
    Unknown,
    /// Compiled here.
    Compiled(Box<Compiler>),
    /// This file's, compiled by somebody else.
    Given(PathBuf, Box<RuleTables>),
}

/// A file as it was read.
#[derive(Debug)]
struct Read {
    stamp: Stamp,
    result: Result<FileContent, Arc<Rejected>>,
}

#[derive(Debug)]
enum FileContent {
    Objects { objects: Content, warnings: Vec<String> },
    Tables(Box<RuleTables>),
}

/// Tables for the start of a switch.
#[derive(Debug)]
pub struct Ready {
    /// The tables, checked.
    pub tables: RuleTables,
    /// Warnings for the authors of the manifests.
    pub warnings: Vec<String>,
}

/// Outcome of a turn.
#[derive(Debug)]
pub enum Reload {
    /// Nothing to do, or nothing that was not told before.
    NotDue,
    /// The manifests mean what the switch has loaded.
    Same,
    /// The switch judges by the manifests as they are.
    Loaded {
        /// Since this generation.
        generation: Generation,
        /// Warnings for the authors of the manifests.
        warnings: Vec<String>,
    },
    /// The manifests are wrong, or the switch refuses what they mean: it goes on with the tables that it has.
    Rejected(Vec<String>),
}

/// Why nothing is published.
#[derive(Debug)]
enum Obstacle {
    /// Files may be complete later.
    Later,
    Rejected(Rejected),
    Refused(ApiError),
}

impl From<Rejected> for Obstacle {
    fn from(rejected: Rejected) -> Obstacle {
        Obstacle::Rejected(rejected)
    }
}

/// Difference to the tables before.
enum Step {
    /// Not at all, as far as is known: no file has changed.
    None,
    Difference(TablesDiff),
    Full,
}

impl PolicyDirectory {
    /// The directory that the configuration names, if it names one. Watches it from here on.
    pub fn of(config: &Policy) -> Option<PolicyDirectory> {
        let root = config.directory.clone()?;
        let watch = if config.watch { Watch::new(&root) } else { Watch::off(&root) };
        Some(PolicyDirectory {
            options: LoadOptions { node: config.node.clone() },
            watch,
            root,
            taken: BTreeMap::new(),
            read: BTreeMap::new(),
            manifests: Manifests::default(),
            tables: Tables::Unknown,
            published: None,
            gone_since: None,
            look_at: None,
            is_asked: false,
            told: None,
            #[cfg(test)]
            before_compile: || {},
        })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Reads and compiles what is there, for the start of a switch. Waits for files that are being written.
    pub fn load(&mut self) -> Result<Ready, Rejected> {
        let patience = Instant::now() + START_PATIENCE;
        loop {
            let now = Instant::now();
            self.watch.is_due(now);
            let (listing, incomplete) = self.read_changed(now);
            match incomplete {
                // The watch tells when somebody closes it; so it is looked at often.
                Some(_) if now < patience => std::thread::sleep(GONE_AFTER),
                Some(path) => return Err(LoadError::BeingWritten { path }.into()),
                None => {
                    let mut warnings = Vec::new();
                    self.compile(listing, &mut warnings)?;
                    let tables = self.current().cloned().unwrap_or_default();
                    return Ok(Ready { tables, warnings });
                }
            }
        }
    }

    /// Takes note that `switch` was started with the tables of [`PolicyDirectory::load`].
    pub fn started(&mut self, switch: &Switch) {
        let is_ours = switch.tables().as_deref() == self.current();
        self.published = is_ours.then(|| switch.status().generation);
        let origin = self.origin();
        if let Some(base) = self.published {
            let _ =
                switch.change_tables(base, &TablesDiff::default(), origin, CoverageCheck::RequireIfCovered);
        }
    }

    /// When the next turn is due, if no event comes before.
    pub(super) fn next_turn(&self) -> Option<Instant> {
        self.watch.next_look().into_iter().chain(self.look_at).min()
    }

    /// Readable when a turn is due.
    pub(super) fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.watch.descriptor()
    }

    /// Loads the directory into `switch` if it has changed, or in any case when `asked`. What is wrong is told once, and again when asked.
    ///
    /// A panic of the reader or the compiler is a rejection: the next turn in which there is something to do compiles from scratch.
    pub fn turn(&mut self, asked: bool, switch: &Switch) -> Reload {
        self.is_asked |= asked;
        let outcome = catch_unwind(AssertUnwindSafe(|| self.reload(switch)));
        let rejected = match outcome {
            Ok(Ok(reload)) => {
                if !matches!(reload, Reload::NotDue) {
                    (self.told, self.is_asked) = (None, false);
                    switch.set_rejected_reload(None);
                }
                return reload;
            }
            Ok(Err(Obstacle::Later)) => return Reload::NotDue,
            Ok(Err(Obstacle::Rejected(rejected))) => rejected.errors(),
            Ok(Err(Obstacle::Refused(refusal))) => {
                if matches!(refusal, ApiError::NoPodCovered { .. }) {
                    self.look_at = Some(Instant::now() + RETRY);
                }
                vec![format!("{}: {refusal}", self.root.display())]
            }
            Err(panic) => {
                self.forget();
                vec![internal_error(&self.root, panic.as_ref())]
            }
        };
        let is_news = std::mem::take(&mut self.is_asked) || self.told.as_ref() != Some(&rejected);
        if !is_news {
            return Reload::NotDue;
        }
        self.told = Some(rejected.clone());
        switch.set_rejected_reload(Some((&self.root, &rejected)));
        Reload::Rejected(rejected)
    }

    fn reload(&mut self, switch: &Switch) -> Result<Reload, Obstacle> {
        let now = Instant::now();
        let is_due = self.watch.is_due(now) || self.look_at.is_some_and(|at| at <= now);
        if !(is_due || self.is_asked) {
            return Ok(Reload::NotDue);
        }
        if self.is_asked {
            self.read.retain(|_, read| read.result.is_ok());
        }
        let (listing, incomplete) = self.read_changed(now);
        // A file that is being written counts as it was, and after a failure of the compiler nobody knows how that is.
        let is_unknown = incomplete.is_some() && self.taken.is_empty();
        if is_unknown || self.wait_for_gone(&listing, now) {
            return Err(Obstacle::Later);
        }
        let is_rejected = self.told.is_some();
        let mut warnings = Vec::new();
        match self.compile(listing, &mut warnings)? {
            Step::None if self.published.is_some() => {
                Ok(if self.is_asked || is_rejected { self.offer(switch)? } else { Reload::NotDue })
            }
            step => self.publish(&step, switch, warnings),
        }
    }

    /// Lists the directory, and reads the files whose stamps differ and that are complete. Gives the listing, and a file that is not
    /// complete.
    fn read_changed(&mut self, now: Instant) -> (Listing, Option<PathBuf>) {
        self.look_at = None;
        let mut listing = files::list(&self.root);
        // The next listing finds changes between listing and watching. The number of listings is bounded.
        for _ in 0..4 {
            if !self.watch.cover(&listing, now) {
                break;
            }
            listing = files::list(&self.root);
        }
        let mut incomplete = None;
        let mut fresh = Vec::new();
        for (path, stamp) in &listing.files {
            if self.taken.get(path) == Some(stamp) {
                self.read.remove(path);
            } else if self.read.get(path).is_none_or(|read| read.stamp != *stamp) {
                self.read.remove(path);
                if self.is_complete(path, stamp, now) {
                    fresh.push(path.clone());
                } else {
                    incomplete = Some(path.clone());
                }
            }
        }
        for path in fresh {
            let stamp = listing.files[&path];
            let (stamp_after, result) = self.read_file(&path, stamp);
            // Somebody has written meanwhile: the events of that may make it incomplete.
            self.watch.take_events(now);
            if stamp_after == stamp && self.is_complete(&path, &stamp, now) {
                self.read.insert(path, Read { stamp, result });
            } else {
                let soon = now + GONE_AFTER;
                self.look_at = Some(self.look_at.map_or(soon, |at| at.min(soon)));
                incomplete = Some(path);
            }
        }
        self.read.retain(|path, _| listing.files.contains_key(path));
        (listing, incomplete)
    }

    fn is_complete(&mut self, path: &Path, stamp: &Stamp, now: Instant) -> bool {
        let is_first = self.taken.is_empty();
        let at = self
            .watch
            .complete_at(path, stamp, now)
            .or_else(|| self.watch.unchanged_at(path, stamp, now).filter(|_| !is_first));
        self.look_at = self.look_at.into_iter().chain(at).min();
        at.is_none()
    }

    fn read_file(&self, path: &Path, stamp: Stamp) -> (Stamp, Result<FileContent, Arc<Rejected>>) {
        let (source, stamp) = match files::read(path) {
            Ok(found) => found,
            Err(error) => return (stamp, Err(Arc::new(error.into()))),
        };
        let content = if source.text().trim().is_empty() && self.manifests.holds(path) {
            Err(LoadError::Emptied { path: path.to_owned() }.into())
        } else if is_tables(source.text()) {
            compiled_tables(&source).map(|tables| FileContent::Tables(Box::new(tables)))
        } else {
            parse::parse_source(&source).map_err(Rejected::Manifests).map(|parsed| FileContent::Objects {
                warnings: manifests::lines(&parsed.warnings).collect(),
                objects: parsed.objects,
            })
        };
        (stamp, content.map_err(Arc::new))
    }

    /// Whether something is missing, and may come back in a moment.
    fn wait_for_gone(&mut self, listing: &Listing, now: Instant) -> bool {
        let is_whole =
            listing.errors.is_empty() && self.taken.keys().all(|path| listing.files.contains_key(path));
        if is_whole {
            self.gone_since = None;
            return false;
        }
        let until = *self.gone_since.get_or_insert(now) + GONE_AFTER;
        if until <= now {
            return false;
        }
        self.look_at = Some(self.look_at.map_or(until, |at| at.min(until)));
        true
    }

    /// Takes what was read, unless something is wrong, and compiles it.
    fn compile(&mut self, listing: Listing, warnings: &mut Vec<String>) -> Result<Step, Rejected> {
        let listing = self.check(listing)?;
        let gone: Vec<PathBuf> =
            self.taken.keys().filter(|path| !listing.files.contains_key(*path)).cloned().collect();
        if self.read.is_empty() && gone.is_empty() && !matches!(self.tables, Tables::Unknown) {
            return Ok(Step::None);
        }
        let mut contents: Vec<(PathBuf, Content)> = gone.into_iter().map(|path| (path, Vec::new())).collect();
        contents.iter().for_each(|(path, _)| _ = self.taken.remove(path));
        let mut given = None;
        for (path, read) in std::mem::take(&mut self.read) {
            let Ok(content) = read.result else { continue };
            self.taken.insert(path.clone(), read.stamp);
            match content {
                FileContent::Tables(tables) => {
                    contents.push((path.clone(), Vec::new()));
                    given = Some(Tables::Given(path, tables));
                }
                FileContent::Objects { objects, warnings: found } => {
                    warnings.extend(found);
                    contents.push((path, objects));
                }
            }
        }
        let before = std::mem::take(&mut self.tables);
        #[cfg(test)]
        (self.before_compile)();
        let update = self.manifests.update(contents);
        warnings.extend(update.warnings);
        if let Some(given) = given {
            self.tables = given;
            return Ok(Step::Full);
        }
        if self.manifests.len() == 0 {
            return Err(Rejected::NoObjectsBelow { path: self.root.clone() });
        }
        let (compiler, step) = match before {
            Tables::Compiled(mut compiler) => {
                let difference = compiler.apply_all(update.changes);
                (compiler, Step::Difference(difference))
            }
            Tables::Unknown | Tables::Given(..) => {
                let options = Options { node: self.options.node.clone() };
                (Box::new(Compiler::from_objects(self.manifests.objects(), options)), Step::Full)
            }
        };
        self.tables = Tables::Compiled(compiler);
        Ok(step)
    }

    /// Refuses a directory in which something is wrong. What is right of it is kept for the time when all is.
    fn check(&self, mut listing: Listing) -> Result<Listing, Rejected> {
        let mut wrong: Vec<Arc<Rejected>> = Vec::new();
        let errors = std::mem::take(&mut listing.errors);
        wrong.extend(errors.into_iter().map(|error| Arc::new(error.into())));
        let beside =
            |path: &Path| Arc::new(Rejected::TablesBesideOthers { name: path.display().to_string() });
        let is_alone = listing.files.len() == 1;
        for (path, read) in &self.read {
            match &read.result {
                Ok(FileContent::Tables(_)) if !is_alone => wrong.push(beside(path)),
                Ok(_) => {}
                Err(rejected) => wrong.push(rejected.clone()),
            }
        }
        if let Tables::Given(path, _) = &self.tables
            && !is_alone
            && listing.files.contains_key(path)
            && !self.read.contains_key(path)
        {
            wrong.push(beside(path));
        }
        if wrong.is_empty() { Ok(listing) } else { Err(Rejected::Several(wrong)) }
    }

    /// Everything is read and compiled anew in the next turn.
    fn forget(&mut self) {
        self.taken.clear();
        self.read.clear();
        self.manifests = Manifests::default();
        (self.tables, self.published) = (Tables::Unknown, None);
    }

    /// Gives the switch the tables as they are, unless it has them.
    fn offer(&mut self, switch: &Switch) -> Result<Reload, Obstacle> {
        self.publish(&Step::Difference(TablesDiff::default()), switch, Vec::new())
    }

    fn publish(&mut self, step: &Step, switch: &Switch, warnings: Vec<String>) -> Result<Reload, Obstacle> {
        let origin = self.origin();
        if let (Step::Difference(difference), Some(base)) = (step, self.published.take()) {
            match switch.change_tables(base, difference, origin.clone(), CoverageCheck::RequireIfCovered) {
                Ok(loaded) => {
                    self.published = Some(loaded.generation);
                    return Ok(if difference.is_empty() {
                        Reload::Same
                    } else {
                        Reload::Loaded { generation: loaded.generation, warnings }
                    });
                }
                // Somebody has loaded other tables.
                Err(ApiError::NoBase | ApiError::Tables(TablesError::Base { .. })) => {}
                Err(refusal) => return Err(Obstacle::Refused(refusal)),
            }
        }
        let Some(tables) = self.current() else { return Ok(Reload::NotDue) };
        if switch.tables().is_some_and(|running| *running == *tables) {
            self.published = Some(switch.status().generation);
            return Ok(Reload::Same);
        }
        let loaded = switch
            .replace_tables(tables.clone(), origin, CoverageCheck::RequireIfCovered)
            .map_err(Obstacle::Refused)?;
        self.published = Some(loaded.generation);
        Ok(Reload::Loaded { generation: loaded.generation, warnings })
    }

    fn current(&self) -> Option<&RuleTables> {
        match &self.tables {
            Tables::Unknown => None,
            Tables::Compiled(compiler) => Some(compiler.tables()),
            Tables::Given(_, tables) => Some(tables),
        }
    }

    /// Origin of the tables, for the status.
    fn origin(&self) -> PolicyOrigin {
        let is_compiled = matches!(self.tables, Tables::Compiled(_));
        PolicyOrigin {
            objects: is_compiled.then(|| self.manifests.len()),
            policies: is_compiled.then(|| self.manifests.policies()),
            ..PolicyOrigin::directory(&self.root)
        }
    }
}

/// A panic, for an operator: the hook of panics has written the rest to the log.
fn internal_error(root: &Path, panic: &(dyn std::any::Any + Send)) -> String {
    let message = threads::message(panic);
    format!(
        "{}: internal error of the policy compiler: {message}. Please report it with the manifests; the next change is \
         compiled from scratch",
        root.display()
    )
}

#[cfg(test)]
mod tests;
