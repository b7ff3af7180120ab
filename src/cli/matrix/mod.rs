//! Command `palisade matrix`: shows the connectivity between pods.

mod html;
mod text;

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::manifests::{ExcludeArguments, Manifests, evaluator};
use super::{CliError, SocketArguments, output, terminal};
use crate::policy::connectivity::matrix::{Matrix, MatrixRequest, matrix as matrix_of};
use crate::policy::connectivity::{GroupNames, Grouping};
use crate::tables::PodName;

/// Show who reaches whom, on which ports
///
/// Pods with the same connectivity share a line, and so do external addresses. Reads manifests; without any,
/// the tables of the running switch. Lines that would make too many pairs are left out, and counted in a
/// note.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade matrix policies/ pods.yaml                         a table
  palisade matrix policies/ pods.yaml --output html > m.html  a heat map in one page
  palisade matrix policies/ pods.yaml --pod shop/db           one pod's sources and destinations
  palisade matrix policies/ --output dot | dot -Tsvg > m.svg  a graph
  palisade matrix --running                                   the running switch
  palisade matrix --running pods.yaml                         the running switch, pods named by their labels")]
pub(super) struct MatrixArguments {
    /// Files or directories of manifests; - is standard input; the running switch where absent
    #[arg(value_name = "FILE|DIR|-")]
    manifests: Vec<PathBuf>,
    /// The tables of the running switch; manifests then only give names to its pods
    #[arg(long)]
    running: bool,
    /// Give each pod a line of its own
    #[arg(long)]
    each_pod: bool,
    /// Only connections from or to this pod; may be given several times
    #[arg(long, value_name = "POD")]
    pod: Vec<PodName>,
    /// Most pairs to show: 1000 in a table, 40000 in a page, 100000 otherwise
    #[arg(long, value_name = "N")]
    limit: Option<NonZeroUsize>,
    /// Form of the matrix
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    socket: SocketArguments,
    #[command(flatten)]
    exclude: ExcludeArguments,
}

/// Form of the matrix.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people
    #[default]
    Table,
    /// For programs
    Json,
    /// One line for each pair of pods or addresses
    Csv,
    /// A graph for Graphviz
    Dot,
    /// One page with a heat map, without references to anything else
    Html,
}

pub(super) fn matrix(arguments: &MatrixArguments) -> Result<ExitCode, CliError> {
    let grouping = if arguments.each_pod { Grouping::ByPod } else { Grouping::ByPolicy };
    let (evaluator, names) = if arguments.running || arguments.manifests.is_empty() {
        let names = match arguments.manifests.as_slice() {
            [] => GroupNames::default(),
            some => GroupNames::of(&Manifests::read(some, &arguments.exclude)?.objects),
        };
        let evaluator = evaluator(arguments.socket.client().tables_document()?)?;
        let names = names.with_pods(evaluator.tables().pods.keys());
        (evaluator, names)
    } else {
        let mut manifests = Manifests::read(&arguments.manifests, &arguments.exclude)?;
        Manifests::assign_placeholders(&mut [&mut manifests]);
        (manifests.evaluator()?, GroupNames::of(&manifests.objects))
    };
    if let Some(pod) = arguments.pod.iter().find(|pod| !evaluator.tables().pods.contains_key(*pod)) {
        return Err(CliError::Message(format!("there is no pod {pod} that policy judges")));
    }
    let pairs_max = arguments.limit.map_or(arguments.output.pairs_max(), NonZeroUsize::get);
    // A page has a cell for each two groups, even if no traffic between them is possible.
    let groups_max = if arguments.output == Form::Html { pairs_max.isqrt() } else { usize::MAX };
    let request = MatrixRequest { grouping, pairs_max, groups_max, pods: &arguments.pod };
    let matrix = matrix_of(&evaluator, &names, &request);
    print(&matrix, arguments.output)?;
    Ok(ExitCode::SUCCESS)
}

impl Form {
    /// Default for the most pairs: as many as a person reads, a browser renders, or a program takes in at
    /// once.
    fn pairs_max(self) -> usize {
        match self {
            Form::Table => 1_000,
            Form::Html => 40_000,
            Form::Json | Form::Csv | Form::Dot => 100_000,
        }
    }
}

fn print(matrix: &Matrix, form: Form) -> io::Result<()> {
    // JSON and HTML contain the note.
    if let Some(omitted) = text::omitted(matrix).filter(|_| !matches!(form, Form::Json | Form::Html)) {
        terminal::note(&format!("note: {omitted}"));
    }
    match form {
        Form::Table => output::text(&text::table(matrix)),
        Form::Json => output::json(matrix),
        Form::Csv => {
            let mut out = io::BufWriter::new(io::stdout().lock());
            text::csv(matrix, &mut out)?;
            out.flush()
        }
        Form::Dot => output::document(&text::dot(matrix)),
        Form::Html => output::document(&html::page(matrix)),
    }
}
