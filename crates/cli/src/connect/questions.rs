use std::sync::Arc;

use transfer::prompt::{EchoMode, Prompt, PromptAnswer, PromptError, TerminalPrompt};

use crate::output::RunReporter;

/// Asks the user, and keeps the progress display off the terminal meanwhile.
pub(super) struct ConsolePrompt {
    person: TerminalPrompt,
    output: Arc<RunReporter>,
    /// The host that asks.
    host: String,
}

impl ConsolePrompt {
    pub(super) fn new(output: Arc<RunReporter>, host: String) -> Self {
        Self {
            person: TerminalPrompt::from_env(),
            output,
            host,
        }
    }
}

impl Prompt for ConsolePrompt {
    fn ask(&mut self, question: &str, kind: EchoMode) -> Result<PromptAnswer, PromptError> {
        let _alone = self.output.console().ask();
        let _hold = self.output.console().hold();
        self.person.ask(question, kind)
    }

    fn show(&mut self, text: &str) {
        let _hold = self.output.console().hold();
        self.person.show(text);
    }

    fn note_wait(&mut self, awaited: &str) {
        self.output.console().note_wait(&self.host, awaited);
    }
}
