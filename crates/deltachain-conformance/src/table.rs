//! Tables of text, with columns as wide as their content.

use anstyle::Style;

/// Alignment of the cells of a column.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Lays out `rows` below `columns`.
pub(crate) fn layout(columns: &[(&str, Align)], rows: &[Vec<String>]) -> String {
    let titles = columns
        .iter()
        .map(|(title, _)| (*title).to_owned())
        .collect();
    let rows: Vec<&Vec<String>> = [&titles].into_iter().chain(rows).collect();
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let line = |row: &&Vec<String>| {
        let cells = row
            .iter()
            .zip(columns)
            .enumerate()
            .map(|(column, (cell, (_, align)))| match align {
                Align::Left => format!("{cell:width$}", width = width(column)),
                Align::Right => format!("{cell:>width$}", width = width(column)),
            });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines: Vec<String> = rows.iter().map(line).collect();
    let bold = Style::new().bold();
    lines[0] = format!("{bold}{}{bold:#}", lines[0]);
    lines.join("\n")
}
