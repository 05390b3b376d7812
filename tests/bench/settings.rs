//! Settings from the environment and the arguments.

use std::path::{Path, PathBuf};

use testkit::missing::checkout;

/// Selection of scenarios and tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Preset {
    /// Fewer scenarios, tools and bytes: takes about ten minutes on two cores.
    Quick,
    /// Everything: takes hours.
    Full,
    /// longhaul's own choice beside fixed numbers of connections and channels, on the paths on
    /// which these matter.
    Sweep,
}

/// Settings of a race.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) preset: Preset,
    pub(crate) runs: u32,
    /// Factor for sizes and numbers of files, in addition to the preset.
    pub(crate) scale: f64,
    /// Globs; a scenario runs if one of them matches its name.
    scenarios: Option<Vec<String>>,
    tools: Option<Vec<String>>,
    /// Folder for the files.
    pub(crate) memory: PathBuf,
    /// Folder for the results.
    pub(crate) results: PathBuf,
    /// Folder with peers that were built rather than installed.
    pub(crate) peers: Option<PathBuf>,
    /// Time limit in seconds, instead of the one of each scenario.
    pub(crate) limit: Option<f64>,
}

impl Settings {
    /// Reads the settings from `quick`, `full` or `sweep` and the environment.
    pub(crate) fn from(arguments: &[String]) -> Result<Self, String> {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let preset = match words.as_slice() {
            [] | ["quick"] => Preset::Quick,
            ["full"] => Preset::Full,
            ["sweep"] => Preset::Sweep,
            _ => {
                return Err(
                    "usage: bench [quick|full|sweep], bench --list, bench --tables, bench --compare OLD NEW"
                        .to_owned(),
                );
            }
        };
        // A sweep is not a race: its results are stored apart, for comparison with the last sweep.
        let (runs, results) = match preset {
            Preset::Quick | Preset::Full => (3.0, "results"),
            Preset::Sweep => (1.0, "results/sweep"),
        };
        let settings = Self {
            preset,
            runs: number("BENCH_RUNS")?.unwrap_or(runs) as u32,
            scale: number("BENCH_SCALE")?.unwrap_or(1.0),
            scenarios: globs("BENCH_SCENARIOS"),
            tools: globs("BENCH_TOOLS"),
            memory: folder("BENCH_DIR").unwrap_or_else(|| "/dev/shm".into()),
            results: folder("BENCH_RESULTS").unwrap_or_else(|| checkout().join(results)),
            peers: folder("LONGHAUL_PEERS"),
            limit: number("BENCH_LIMIT")?,
        };
        if settings.runs == 0 || settings.scale <= 0.0 {
            return Err("BENCH_RUNS and BENCH_SCALE are above zero".to_owned());
        }
        if !settings.memory.is_dir() {
            let memory = settings.memory.display();
            return Err(format!("{memory} is needed: the files lie there"));
        }
        Ok(settings)
    }

    /// Reports if a scenario was chosen by name; `None` if none was named.
    pub(crate) fn wants_scenario(&self, name: &str) -> Option<bool> {
        chosen(self.scenarios.as_deref(), name)
    }

    /// Reports if a tool was chosen by name; `None` if none was named.
    pub(crate) fn wants_tool(&self, name: &str) -> Option<bool> {
        chosen(self.tools.as_deref(), name)
    }

    /// Describes the settings for the report.
    pub(crate) fn shown(&self) -> String {
        let mut text = match self.preset {
            Preset::Quick => "quick".to_owned(),
            Preset::Full => "full".to_owned(),
            Preset::Sweep => "sweep".to_owned(),
        };
        for (what, globs) in [("scenarios", &self.scenarios), ("tools", &self.tools)] {
            if let Some(globs) = globs {
                text.push_str(&format!(", {what} {}", globs.join(",")));
            }
        }
        if self.scale != 1.0 {
            text.push_str(&format!(", sizes times {}", self.scale));
        }
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        if let Some(pages) = huge_pages(&mounts, &self.memory) {
            text.push_str(&format!(", files in pages of 2 MiB (tmpfs, huge={pages})"));
        }
        text
    }
}

/// Returns the huge page setting of a tmpfs at `folder`, if it has one. It determines most of the
/// cost of writing a file in memory.
fn huge_pages(mounts: &str, folder: &Path) -> Option<String> {
    let mount = mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (point, kind, options) = (words.nth(1)?, words.next()?, words.next()?);
            folder.starts_with(point).then_some((point, kind, options))
        })
        // Of several mounts at one place, the last one is visible.
        .max_by_key(|(point, ..)| point.len())?;
    let (_, kind, options) = mount;
    let pages = options.split(',').find_map(|o| o.strip_prefix("huge="))?;
    (kind == "tmpfs").then(|| pages.to_owned())
}

fn chosen(globs: Option<&[String]>, name: &str) -> Option<bool> {
    // A slash is part of a name here, and a * matches it.
    let name = name.replace('/', " ");
    Some(globs?.iter().any(|glob| {
        let glob = glob.replace('/', " ");
        fast_glob::glob_match(&glob, &name)
    }))
}

fn globs(name: &str) -> Option<Vec<String>> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    let globs = text.split([',', '|']).map(|glob| glob.trim().to_owned());
    Some(globs.collect())
}

fn folder(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|text| !text.is_empty())
        .map(PathBuf::from)
}

fn number(name: &str) -> Result<Option<f64>, String> {
    match std::env::var(name).ok().filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(text) => match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Some(number)),
            _ => Err(format!("{name} is a number, not {text:?}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_the_innermost_file_system_are_told() {
        let mounts = "tmpfs /dev/shm tmpfs rw,huge=never,inode64 0 0\n\
                      tmpfs /dev/shm/race tmpfs rw,size=14g,huge=always 0 0\n\
                      /dev/vda / ext4 rw,relatime 0 0\n";
        let pages = |folder: &str| huge_pages(mounts, Path::new(folder));
        assert_eq!(pages("/dev/shm/race/x").as_deref(), Some("always"));
        assert_eq!(pages("/dev/shm").as_deref(), Some("never"));
        assert_eq!(pages("/dev/shm/racer").as_deref(), Some("never"));
        assert_eq!(pages("/home"), None);
    }
}
