//! Rebuilds the crate when a migration is added; the macro that embeds them cannot ask for that.

fn main() {
    println!("cargo:rerun-if-changed=../migrations");
}
