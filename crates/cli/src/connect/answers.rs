//! Asks for each password and passphrase once in a run, however many sessions log in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use transfer::prompt::{EchoMode, Prompt, PromptAnswer, PromptError};

/// The secrets that the user has entered, by host and question. The host has its port, since a
/// question names only the account.
pub(super) type AnswerCache = Arc<Mutex<BTreeMap<(String, String), PromptAnswer>>>;

/// The prompt of one session. The first time that the session asks a question, an answer to another
/// session is repeated; after that the answer was wrong, and the user is asked.
pub(super) struct CachedAnswerPrompt<P> {
    person: P,
    host: String,
    answers: AnswerCache,
    asked: BTreeSet<String>,
}

impl<P> CachedAnswerPrompt<P> {
    pub(super) fn new(person: P, host: String, answers: AnswerCache) -> Self {
        Self {
            person,
            host,
            answers,
            asked: BTreeSet::new(),
        }
    }
}

impl<P> CachedAnswerPrompt<P> {
    fn key(&self, question: &str) -> (String, String) {
        (self.host.clone(), question.to_owned())
    }
}

/// True if the answer to a question is the same each time: a one-time code is not.
fn is_lasting(question: &str, kind: EchoMode) -> bool {
    let ends = question.trim_end().to_ascii_lowercase();
    let password = ends.ends_with("password:");
    kind == EchoMode::Secret && (password || question.starts_with("Enter passphrase for key "))
}

impl<P: Prompt> Prompt for CachedAnswerPrompt<P> {
    fn ask(&mut self, question: &str, kind: EchoMode) -> Result<PromptAnswer, PromptError> {
        if !is_lasting(question, kind) {
            return self.person.ask(question, kind);
        }
        let answers = || self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if self.asked.insert(question.to_owned())
            && let Some(answer) = answers().get(&self.key(question))
        {
            return Ok(answer.clone());
        }
        let answer = self.person.ask(question, kind)?;
        answers().insert(self.key(question), answer.clone());
        Ok(answer)
    }

    fn show(&mut self, text: &str) {
        self.person.show(text);
    }

    fn note_wait(&mut self, awaited: &str) {
        self.person.note_wait(awaited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers with the number of the question.
    struct Counting(Arc<Mutex<u32>>);

    impl Prompt for Counting {
        fn ask(&mut self, _: &str, _: EchoMode) -> Result<PromptAnswer, PromptError> {
            let mut count = self.0.lock().unwrap();
            *count += 1;
            Ok(PromptAnswer::new(count.to_string()))
        }

        fn show(&mut self, _: &str) {}
    }

    #[test]
    fn a_password_is_asked_for_once_and_again_if_it_was_wrong() {
        let (count, answers) = (Arc::default(), AnswerCache::default());
        let on = |host: &str| {
            let person = Counting(Arc::clone(&count));
            CachedAnswerPrompt::new(person, host.to_owned(), Arc::clone(&answers))
        };
        let session = || on("u@h:22");
        let ask = |session: &mut CachedAnswerPrompt<Counting>, question: &str| {
            session.ask(question, EchoMode::Secret).unwrap().to_string()
        };
        let own = "u@h's password: ";
        let mut first = session();
        assert_eq!(ask(&mut first, own), "1");
        // The server refused it.
        assert_eq!(ask(&mut first, own), "2");
        let mut second = session();
        assert_eq!(ask(&mut second, own), "2");
        assert_eq!(ask(&mut second, own), "3");
        assert_eq!(ask(&mut session(), own), "3");
        // Another account, and codes.
        assert_eq!(ask(&mut session(), "u@g's password: "), "4");
        for expected in ["5", "6"] {
            assert_eq!(ask(&mut session(), "(u@h) Verification code: "), expected);
        }
        let mut visible = session();
        let answer = visible.ask(own, EchoMode::Visible).unwrap();
        assert_eq!(*answer, "7");
        // Another server on the same machine.
        assert_eq!(ask(&mut on("u@h:2222"), own), "8");
    }
}
