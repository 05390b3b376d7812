use std::time::Duration;

/// How a program ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub(super) shown: String,
    /// The exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether it was ended for running too long.
    pub timed_out: bool,
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error.
    pub stderr: Vec<u8>,
    /// From its start to its end.
    pub elapsed: Duration,
    /// Processor time of it and of the children it waited for, in steps of 10 ms.
    pub cpu: Duration,
}

impl Outcome {
    /// Whether it ended with exit code 0.
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }

    /// Standard output as text.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Panics with all that is known unless the exit code is `code`.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert!(
            self.code == Some(code),
            "expected exit code {code} of {self}"
        );
        self
    }

    /// Panics unless standard error holds one of `texts`, whatever their case.
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
