//! `scheme FILE` runs a file; without one, lines from the terminal are evaluated.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use scheme::{Interpreter, Value, flush};
use standstill::Heap;

fn main() -> ExitCode {
    // The reader and the compiler recurse, and need more stack than a process gets by itself.
    let thread = std::thread::Builder::new().stack_size(256 << 20).spawn(run);
    match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        Ok(Err(_)) => ExitCode::FAILURE, // the panic has printed its message
        Err(error) => {
            eprintln!("no thread for the program: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> ExitCode {
    let mut interpreter = Interpreter::new(Heap::new());
    let Some(name) = std::env::args().nth(1) else { return repl(&mut interpreter) };
    let text = match std::fs::read_to_string(&name) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("{name}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = interpreter.run(&text);
    flush();
    match result {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {}", interpreter.describe(&error));
            ExitCode::FAILURE
        }
    }
}

fn repl(interpreter: &mut Interpreter) -> ExitCode {
    let mut editor = match DefaultEditor::new() {
        Ok(editor) => editor,
        Err(error) => {
            eprintln!("no line editor: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut text = String::new();
    loop {
        let prompt = if text.is_empty() { "> " } else { "  " };
        // Other threads of the program may collect while this one waits for the user.
        let line = interpreter.vm.cx.m.detach(|| editor.readline(prompt));
        match line {
            Ok(line) => text.push_str(&line),
            Err(ReadlineError::Interrupted) => {
                text.clear();
                continue;
            }
            Err(_) => return ExitCode::SUCCESS,
        }
        text.push('\n');
        if is_open(&text) {
            continue;
        }
        if let Err(error) = editor.add_history_entry(text.trim_end()) {
            eprintln!("the line is not in the history: {error}");
        }
        match interpreter.run(&text) {
            Ok(Value::Unspecified) => {}
            Ok(value) => println!("{}", interpreter.show(&value)),
            Err(error) => println!("error: {}", interpreter.describe(&error)),
        }
        flush();
        text.clear();
    }
}

/// Whether a form of the text has no end yet.
fn is_open(text: &str) -> bool {
    let (mut depth, mut in_string, mut in_comment) = (0_i32, false, false);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\n' => in_comment = false,
            _ if in_comment => {}
            '\\' => drop(chars.next()),
            '"' => in_string = !in_string,
            ';' if !in_string => in_comment = true,
            '(' | '[' if !in_string => depth += 1,
            ')' | ']' if !in_string => depth -= 1,
            _ => {}
        }
    }
    depth > 0 || in_string
}
