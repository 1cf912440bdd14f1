//! The `wnw` command: reads the command line, runs the engine, shows what it says.
//!
//! This crate alone prints, exits, and reads the environment.

mod analyze_command;
mod answers;
mod args;
mod bench_args;
mod bench_command;
mod bench_tables;
mod calibrate_command;
mod charts;
mod data_command;
mod data_fetch;
mod error;
mod eval_charts;
mod eval_command;
mod head_map;
mod inputs;
mod kept_mass;
mod kv_args;
mod kv_report;
mod mismatch;
mod model_command;
mod models;
mod outputs;
mod plan_command;
mod profile_pair;
mod progress;
mod runtime;
mod signals;
mod size;
mod subtitles;
mod sweep;
mod system;
mod tide;
mod together;
mod transcribe;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let held = signals::hold();
    system::set_threads(cli.threads, cli.command.is_driven_by_main());
    held.listen();
    let result = match &cli.command {
        Command::Transcribe(args) => transcribe::run(args),
        Command::Calibrate(args) => calibrate_command::run(args).map(|()| ExitCode::SUCCESS),
        Command::Analyze(args) => analyze_command::run(args),
        Command::Eval(args) => eval_command::run(args),
        Command::Data(args) => data_command::run(args).map(|()| ExitCode::SUCCESS),
        Command::Model(args) => model_command::run(args).map(|()| ExitCode::SUCCESS),
        Command::Bench(args) => bench_command::run(args).map(|()| ExitCode::SUCCESS),
        Command::Plan(args) => plan_command::run(args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "wnw", &mut script);
            outputs::print(&String::from_utf8_lossy(&script)).map(|()| ExitCode::SUCCESS)
        }
    };
    match result {
        Ok(code) => code,
        // The reader of our output went away, as `head` does: nothing is wrong.
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            outputs::complain(&format!("wnw: {error}"));
            error.exit_code()
        }
    }
}
