use std::time::Duration;

/// Result of a program that has ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub(super) shown: String,
    /// Exit code, unless a signal ended the program.
    pub code: Option<i32>,
    /// Signal that ended the program.
    pub signal: Option<i32>,
    /// The program was killed because of its time limit.
    pub timed_out: bool,
    /// Bytes written to standard output.
    pub stdout: Vec<u8>,
    /// Bytes written to standard error.
    pub stderr: Vec<u8>,
    /// Time from start to end.
    pub elapsed: Duration,
    /// Processor time of the program and of the children that it waited for, in steps of 10 ms.
    pub cpu: Duration,
}

impl Outcome {
    /// Reports if the exit code is 0.
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }

    /// Returns standard output as text.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Returns standard error as text.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Panics with the full result unless the exit code is `code`.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert!(
            self.code == Some(code),
            "expected exit code {code} of {self}"
        );
        self
    }

    /// Panics unless standard error contains one of `texts`, ignoring case.
    #[track_caller]
    pub fn expect_err(self, texts: &[&str]) -> Self {
        let lower = self.err().to_lowercase();
        let found = texts
            .iter()
            .any(|text| lower.contains(&text.to_lowercase()));
        assert!(
            found,
            "expected one of {texts:?} on standard error of {self}"
        );
        self
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.shown)?;
        match (self.timed_out, self.code, self.signal) {
            (true, ..) => writeln!(f, "  ended for running longer than {:?}", self.elapsed)?,
            (_, Some(code), _) => writeln!(f, "  exit code {code} after {:?}", self.elapsed)?,
            (_, _, signal) => writeln!(f, "  ended by signal {signal:?} after {:?}", self.elapsed)?,
        }
        for (name, bytes) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            for line in String::from_utf8_lossy(bytes).lines() {
                writeln!(f, "  {name}: {}", line.escape_debug())?;
            }
        }
        Ok(())
    }
}
