//! Measurements as data: samples and their spread, results that are kept and compared, and the
//! tables, plots and pages made of them.
