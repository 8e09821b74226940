//! The distance of standstill's pauses from the machine's limit, and their growth.
//!
//! `limit shapes` measures full collections of one size beside the ideal mark of the same graph.
//! `limit growth` measures collections of every size. The tool starts itself for each measurement,
//! so each has a process of its own. The README describes the measurements and how to read them.

mod child;
mod growth;
mod shape;
mod shapes;
mod typed;

use std::error::Error;

use clap::{Parser, Subcommand};

/// Measures the distance of standstill's pauses from the machine's limit
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Full collections of differently shaped heaps, beside the ideal mark
    Shapes(shapes::Options),
    /// Building, collecting and dropping heaps of growing size
    Growth(growth::Options),
    /// One measurement, in this process (the tool starts itself with it)
    #[command(hide = true)]
    Measure {
        /// The task, as JSON
        task: String,
    },
}

fn main() -> Result<(), Box<dyn Error>> {
    match Args::parse().command {
        Command::Shapes(options) => shapes::run(&options),
        Command::Growth(options) => growth::run(&options),
        Command::Measure { task } => match serde_json::from_str(&task)? {
            child::Task::Shape(task) => shapes::measure(&task),
            child::Task::Size(task) => growth::measure(&task),
            child::Task::IdealSize(task) => growth::measure_ideal(&task),
        },
    }
}
