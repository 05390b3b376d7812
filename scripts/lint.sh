#!/usr/bin/env bash
# Format, lints, documentation, spelling and dependencies: `make lint`, and a part of `make test`.
# What is not installed is named and left out: typos (scripts/setup-tests.sh installs it),
# cargo-deny, and the toolchain of the minimum Rust version.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()
step() {
    local name=$1 begun=$SECONDS
    shift
    echo "== $name"
    "$@" || failed+=("$name")
    echo "== $name: $((SECONDS - begun)) s"
}

documentation() {
    RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" cargo doc --locked --workspace --no-deps --document-private-items --quiet
}

spelling() {
    local typos
    typos=$(PATH="target/peers/venv/bin:$PATH" command -v typos) \
        || { echo "typos is not installed; left out"; return 0; }
    "$typos" --format brief
}

# Names each dependency of a package that no source of it mentions.
unused_dependencies() {
    local manifest folder name found=0
    for manifest in crates/*/Cargo.toml tests/Cargo.toml fuzz/Cargo.toml; do
        folder=$(dirname "$manifest")
        for name in $(awk '/^\[/ { on = /dependencies\]$/ } on && /^[a-zA-Z0-9_-]+[. =]/ { sub(/[. =].*/, ""); print }' \
            "$manifest"); do
            if ! grep -rqwE --include='*.rs' -- "${name//-/_}|${name//-/}" "$folder"; then
                echo "$manifest: $name is not used"
                found=1
            fi
        done
    done
    return "$found"
}

licences_and_sources() {
    cargo deny --version >/dev/null 2>&1 || { echo "cargo-deny is not installed; left out"; return 0; }
    cargo deny --locked check
}

# Clippy's incompatible_msrv knows when each function of the standard library came; this builds.
minimum_rust() {
    local version
    version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    cargo "+$version" --version >/dev/null 2>&1 || { echo "Rust $version is not installed; left out"; return 0; }
    CARGO_TARGET_DIR=target/msrv cargo "+$version" check --locked --workspace --quiet
}

step format cargo fmt --all --check
step clippy cargo clippy --locked --workspace --all-targets -- -D warnings
step documentation documentation
step spelling spelling
step "unused dependencies" unused_dependencies
step "licences and sources" licences_and_sources
step "minimum Rust version" minimum_rust
[ "${#failed[@]}" = 0 ] || { echo "FAILED: ${failed[*]}"; exit 1; }
