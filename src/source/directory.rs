//! Policy directory: its objects, their compiler, and the generation that the switch has published.
//!
//! A turn lists the directory, reads the complete files whose stamps changed, passes the changed objects to
//! the compiler, and publishes the difference of the tables. Files take effect together: if one of them is
//! invalid, the switch keeps its tables, and the directory keeps the valid files until all of them are valid.

mod audit;
mod publish;
mod read;
mod services;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::audit::AuditCompiler;
use super::files::{Listing, LoadError, Stamp};
use super::load::{LoadOptions, Rejected};
use super::manifests::{Content, Manifests};
use super::watch::Watch;
use crate::config::{Policy, SourceKind};
use crate::control::protocol::PolicyOrigin;
use crate::control::{ApiError, CoverageCheck, Switch};
use crate::ids::Generation;
use crate::policy::{Change, Compiler, Options};
use crate::tables::{PolicyRef, RuleTables, TablesDiff};
use crate::threads;
use services::DirectoryServices;

/// Delay after which a missing file counts as removed. An editor that moves the old file away before it
/// writes the other one leaves a gap, and so does the replacement of a directory.
const REMOVAL_DELAY: Duration = Duration::from_millis(50);
/// Timeout at the start for files that are being written.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between attempts to publish tables that would close all pods. Pods may appear meanwhile.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Configured directory, or file, of policies.
#[derive(Debug)]
pub struct PolicyDirectory {
    root: PathBuf,
    options: LoadOptions,
    watch: Watch,
    /// Files whose objects are in `manifests`.
    loaded_files: BTreeMap<PathBuf, Stamp>,
    /// Files that have been read and do not take effect: they or other files are invalid.
    pending_files: BTreeMap<PathBuf, Read>,
    manifests: Manifests,
    tables: Tables,
    audit: AuditCompiler,
    /// Audited policies, if the switch has got the audit of these manifests.
    audit_published: Option<Vec<PolicyRef>>,
    services: DirectoryServices,
    /// Generation with which the switch published exactly these tables.
    published: Option<Generation>,
    /// Time since which a loaded file is missing.
    missing_since: Option<Instant>,
    /// Time at which a file may be complete or count as removed.
    next_check: Option<Instant>,
    reload_requested: bool,
    /// Last reported rejection.
    last_rejection: Option<Vec<String>>,
    #[cfg(test)]
    before_compile: fn(),
}

/// Tables of the directory.
#[derive(Debug, Default)]
enum Tables {
    /// Unknown: nothing has been read, or the compiler has panicked.
    #[default]
    Unknown,
    /// Tables of this compiler.
    Compiled(Box<Compiler>),
    /// Precompiled tables of a file.
    Precompiled(PathBuf, Box<RuleTables>),
}

/// File content with its stamp.
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
    /// Checked tables.
    pub tables: RuleTables,
    /// Warnings for the authors of the manifests.
    pub warnings: Vec<String>,
}

/// Outcome of a turn.
#[derive(Debug)]
pub enum Reload {
    /// Nothing to do, or nothing to report.
    NotDue,
    /// Switch has the tables of the manifests already.
    Same,
    /// Switch has published the tables of the manifests.
    Loaded {
        /// Generation of the tables.
        generation: Generation,
        /// Warnings for the authors of the manifests.
        warnings: Vec<String>,
    },
    /// Manifests are invalid, or the switch refuses their tables. The running tables stay.
    Rejected(Vec<String>),
}

/// Reason for which nothing is published.
#[derive(Debug)]
enum PublishError {
    /// Files may be complete later.
    Later,
    Rejected(Rejected),
    Refused(ApiError),
}

impl From<Rejected> for PublishError {
    fn from(rejected: Rejected) -> PublishError {
        PublishError::Rejected(rejected)
    }
}

/// Change since the previous tables.
enum TablesChange {
    /// No file has changed.
    None,
    Difference(TablesDiff),
    Full,
}

impl PolicyDirectory {
    /// Opens the configured directory, if the configuration has one, and watches it.
    pub fn of(config: &Policy) -> Option<PolicyDirectory> {
        let root = config.directory.clone().filter(|_| config.source == SourceKind::Directory)?;
        let watch = if config.watch { Watch::new(&root) } else { Watch::off(&root) };
        Some(PolicyDirectory {
            services: DirectoryServices::new(config.node.clone()),
            options: LoadOptions { node: config.node.clone(), ..LoadOptions::default() },
            watch,
            root,
            loaded_files: BTreeMap::new(),
            pending_files: BTreeMap::new(),
            manifests: Manifests::default(),
            tables: Tables::Unknown,
            audit: AuditCompiler::default(),
            audit_published: None,
            published: None,
            missing_since: None,
            next_check: None,
            reload_requested: false,
            last_rejection: None,
            #[cfg(test)]
            before_compile: || {},
        })
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Reads and compiles the directory for the start of a switch. Waits for files that are being written.
    pub fn load(&mut self) -> Result<Ready, Rejected> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let now = Instant::now();
            self.watch.is_due(now);
            let (listing, incomplete) = self.read_changed(now);
            match incomplete {
                // The watch reports the close only if it is polled.
                Some(_) if now < deadline => std::thread::sleep(REMOVAL_DELAY),
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

    /// Records that `switch` was started with the tables of [`PolicyDirectory::load`].
    pub fn started(&mut self, switch: &Switch) {
        let is_ours = switch.tables().as_deref() == self.current();
        self.published = is_ours.then(|| switch.status().generation);
        let origin = self.origin();
        if let Some(base) = self.published {
            let _ =
                switch.change_tables(base, &TablesDiff::default(), origin, CoverageCheck::RequireIfCovered);
            self.publish_audit(switch);
        }
        if let Err(refusal) = self.services.publish(switch) {
            let errors = [format!("{}: {refusal}", self.root.display())];
            tracing::error!(directory = %self.root.display(), "Services are not loaded: {}", errors[0]);
            switch.set_rejected_reload(Some((&self.root, &errors)));
            self.next_check = Some(Instant::now() + RETRY_INTERVAL);
        }
    }

    /// Time of the next turn, if no event comes before.
    pub(super) fn next_turn(&self) -> Option<Instant> {
        self.watch.next_look().into_iter().chain(self.next_check).min()
    }

    /// Descriptor that is readable if a turn is due.
    pub(super) fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.watch.descriptor()
    }

    /// Loads the directory into `switch` if it has changed, or if `asked`. Reports a rejection once, and
    /// again if asked.
    ///
    /// A panic of the parser or the compiler is a rejection. The next turn with changes compiles from
    /// scratch.
    pub fn turn(&mut self, asked: bool, switch: &Switch) -> Reload {
        self.reload_requested |= asked;
        let outcome = catch_unwind(AssertUnwindSafe(|| self.reload(switch)));
        let rejected = match outcome {
            Ok(Ok(reload)) => {
                if !matches!(reload, Reload::NotDue) {
                    (self.last_rejection, self.reload_requested) = (None, false);
                    switch.set_rejected_reload(None);
                }
                return reload;
            }
            Ok(Err(PublishError::Later)) => return Reload::NotDue,
            Ok(Err(PublishError::Rejected(rejected))) => rejected.errors(),
            Ok(Err(PublishError::Refused(refusal))) => {
                if matches!(refusal, ApiError::NoPodCovered { .. }) {
                    self.next_check = Some(Instant::now() + RETRY_INTERVAL);
                }
                vec![format!("{}: {refusal}", self.root.display())]
            }
            Err(panic) => {
                self.reset();
                vec![internal_error(&self.root, panic.as_ref())]
            }
        };
        let is_new =
            std::mem::take(&mut self.reload_requested) || self.last_rejection.as_ref() != Some(&rejected);
        if !is_new {
            return Reload::NotDue;
        }
        self.last_rejection = Some(rejected.clone());
        switch.set_rejected_reload(Some((&self.root, &rejected)));
        Reload::Rejected(rejected)
    }

    fn reload(&mut self, switch: &Switch) -> Result<Reload, PublishError> {
        let now = Instant::now();
        let is_due = self.watch.is_due(now) || self.next_check.is_some_and(|at| at <= now);
        if !(is_due || self.reload_requested) {
            return Ok(Reload::NotDue);
        }
        if self.reload_requested {
            self.pending_files.retain(|_, read| read.result.is_ok());
        }
        let (listing, incomplete) = self.read_changed(now);
        // A file that is being written keeps its former content, which is unknown after a panic of the
        // compiler.
        let is_unknown = incomplete.is_some() && self.loaded_files.is_empty();
        if is_unknown || self.awaits_missing(&listing, now) {
            return Err(PublishError::Later);
        }
        let is_rejected = self.last_rejection.is_some();
        let mut warnings = Vec::new();
        let reload = match self.compile(listing, &mut warnings)? {
            TablesChange::None if self.published.is_some() => {
                if !(self.reload_requested || is_rejected || self.services.is_pending()) {
                    return Ok(Reload::NotDue);
                }
                self.republish(switch)?
            }
            step => self.publish(&step, switch, warnings.clone())?,
        };
        self.publish_services(reload, switch, warnings)
    }

    /// Loads and compiles the pending files, unless one is invalid.
    fn compile(&mut self, listing: Listing, warnings: &mut Vec<String>) -> Result<TablesChange, Rejected> {
        let listing = self.check(listing)?;
        let removed: Vec<PathBuf> =
            self.loaded_files.keys().filter(|path| !listing.files.contains_key(*path)).cloned().collect();
        if self.pending_files.is_empty() && removed.is_empty() && !matches!(self.tables, Tables::Unknown) {
            return Ok(TablesChange::None);
        }
        let mut contents: Vec<(PathBuf, Content)> =
            removed.into_iter().map(|path| (path, Vec::new())).collect();
        contents.iter().for_each(|(path, _)| _ = self.loaded_files.remove(path));
        let mut precompiled = None;
        for (path, read) in std::mem::take(&mut self.pending_files) {
            let Ok(content) = read.result else { continue };
            self.loaded_files.insert(path.clone(), read.stamp);
            match content {
                FileContent::Tables(tables) => {
                    contents.push((path.clone(), Vec::new()));
                    precompiled = Some(Tables::Precompiled(path, tables));
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
        self.services.apply(&update.changes);
        warnings.extend(self.services.warnings());
        if let Some(precompiled) = precompiled {
            self.reset_audit();
            self.tables = precompiled;
            return Ok(TablesChange::Full);
        }
        if !self.manifests.has_policy_objects() {
            return Err(Rejected::NoObjectsBelow { path: self.root.clone() });
        }
        self.note_audited(&update.changes);
        let (compiler, step) = match before {
            Tables::Compiled(mut compiler) => {
                let difference = compiler.apply_all(update.changes.into_iter().map(Change::enforced));
                (compiler, TablesChange::Difference(difference))
            }
            Tables::Unknown | Tables::Precompiled(..) => {
                let options = Options { node: self.options.node.clone() };
                let enforced = self.manifests.objects().filter(|object| !object.is_audited());
                (Box::new(Compiler::from_objects(enforced, options)), TablesChange::Full)
            }
        };
        self.tables = Tables::Compiled(compiler);
        Ok(step)
    }

    /// Rejects a directory with an invalid file. Valid files stay pending.
    fn check(&self, mut listing: Listing) -> Result<Listing, Rejected> {
        let mut wrong: Vec<Arc<Rejected>> = Vec::new();
        let errors = std::mem::take(&mut listing.errors);
        wrong.extend(errors.into_iter().map(|error| Arc::new(error.into())));
        let beside =
            |path: &Path| Arc::new(Rejected::TablesBesideOthers { name: path.display().to_string() });
        let is_alone = listing.files.len() == 1;
        for (path, read) in &self.pending_files {
            match &read.result {
                Ok(FileContent::Tables(_)) if !is_alone => wrong.push(beside(path)),
                Ok(_) => {}
                Err(rejected) => wrong.push(rejected.clone()),
            }
        }
        if let Tables::Precompiled(path, _) = &self.tables
            && !is_alone
            && listing.files.contains_key(path)
            && !self.pending_files.contains_key(path)
        {
            wrong.push(beside(path));
        }
        if wrong.is_empty() { Ok(listing) } else { Err(Rejected::Several(wrong)) }
    }

    /// Discards all state: the next turn reads and compiles everything.
    fn reset(&mut self) {
        self.loaded_files.clear();
        self.pending_files.clear();
        self.manifests = Manifests::default();
        self.services = DirectoryServices::new(self.options.node.clone());
        (self.tables, self.published) = (Tables::Unknown, None);
        self.reset_audit();
    }

    fn current(&self) -> Option<&RuleTables> {
        match &self.tables {
            Tables::Unknown => None,
            Tables::Compiled(compiler) => Some(compiler.tables()),
            Tables::Precompiled(_, tables) => Some(tables),
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

/// Message for a panic. The panic hook has logged the details.
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
