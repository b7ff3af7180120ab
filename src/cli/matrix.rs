//! `palisade matrix`: who reaches whom, on what.

mod forms;
mod html;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::offline::{Manifests, judge};
use super::{Failure, SocketArguments, output};
use crate::policy::matrix::{Matrix, matrix as matrix_of};
use crate::policy::reach::{Grouping, Names};

/// Show who reaches whom, on which ports
///
/// Pods that no policy tells apart share a line; so do addresses outside. Reads manifests; without any, the tables of the
/// running switch.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  palisade matrix policies/ pods.yaml                         a table
  palisade matrix policies/ pods.yaml --output html > m.html  a heat map in one page
  palisade matrix policies/ --output dot | dot -Tsvg > m.svg  a graph
  palisade matrix --output json                               the running switch")]
pub(super) struct MatrixArguments {
    /// Files or directories of manifests; - is standard input; the running switch where absent
    #[arg(value_name = "FILE|DIR|-")]
    manifests: Vec<PathBuf>,
    /// Give each pod a line of its own
    #[arg(long)]
    each_pod: bool,
    /// Form of the matrix
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    socket: SocketArguments,
}

/// The form of the matrix.
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

pub(super) fn matrix(arguments: &MatrixArguments) -> Result<ExitCode, Failure> {
    let grouping = if arguments.each_pod { Grouping::EachPod } else { Grouping::Alike };
    let matrix = if arguments.manifests.is_empty() {
        let judge = judge(arguments.socket.client().tables_document()?)?;
        matrix_of(&judge, &Names::default(), grouping)
    } else {
        let mut manifests = Manifests::read(&arguments.manifests)?;
        Manifests::give_addresses(&mut [&mut manifests]);
        matrix_of(&manifests.judge()?, &Names::of(&manifests.objects), grouping)
    };
    print(&matrix, arguments.output)?;
    Ok(ExitCode::SUCCESS)
}

fn print(matrix: &Matrix, form: Form) -> std::io::Result<()> {
    match form {
        Form::Table => output::text(&forms::table(matrix)),
        Form::Json => output::json(matrix),
        Form::Csv => output::text(&forms::csv(matrix)),
        Form::Dot => output::text(&forms::dot(matrix)),
        Form::Html => output::text(&html::page(matrix)),
    }
}
