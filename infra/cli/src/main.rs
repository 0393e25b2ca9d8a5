//! The kubectl plugin `kubectl driftless`. See the library.

use std::{
    env,
    io::{self, ErrorKind, IsTerminal as _, Write as _},
    path::Path,
    process::{self, ExitCode},
};

use clap::Parser as _;
use driftless_cli::{
    arguments::{Arguments, Command},
    commands::{Terminal, complete, run},
    complete::PROGRAM,
    render::{Style, clean},
};
use jiff::Timestamp;
use terminal_size::{Height, Width, terminal_size_of};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let program = env::args_os().next().and_then(|path| Some(Path::new(&path).file_stem()?.to_string_lossy().into_owned()));
    let program = program.as_deref().unwrap_or("kubectl-driftless");
    if program == PROGRAM {
        let words: Vec<_> = env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
        print!("{}", complete(&words).await);
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::parse();
    let is_plain =
        env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) || env::var_os("TERM").is_some_and(|term| term == "dumb");
    let columns = |(Width(columns), _): (Width, Height)| usize::from(columns);
    let style = Style { colour: !is_plain && io::stdout().is_terminal(), columns: terminal_size_of(io::stdout()).map(columns) };
    // Notes and errors have lines of their own, also where the output is a file.
    let notes = Style { columns: terminal_size_of(io::stderr()).map(columns), ..Style::default() };
    // 1 is an answer of these: there is a difference, or a refused object.
    let failure = if matches!(arguments.command, Command::Diff { .. } | Command::Migrate { .. }) { 2 } else { 1 };
    let mut out = |text: &str| {
        let Err(error) = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) else { return };
        // The reader of a pipe, such as `head`, has enough.
        if error.kind() == ErrorKind::BrokenPipe {
            process::exit(0);
        }
        eprintln!("{}", notes.wrap(&format!("error: cannot write the output: {error}")));
        process::exit(failure);
    };
    let mut note = |text: &str| eprintln!("{}", notes.wrap(&clean(text)));
    // Without a display, xdg-open starts a browser of the terminal.
    let has_display =
        ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| env::var_os(name).is_some_and(|display| !display.is_empty()));
    let has_desktop = style.columns.is_some() && (has_display || cfg!(not(target_os = "linux")));
    let mut terminal = Terminal { program, style, has_desktop, now, out: &mut out, note: &mut note };
    match run(arguments, &mut terminal).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{}", notes.wrap(&format!("error: {}", clean(&error.to_string()))));
            error.exit_code()
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the clock is read here and handed down")]
fn now() -> Timestamp {
    Timestamp::now()
}
