//! Tables of text: columns as wide as their content. The last column may hold anything, since
//! nothing follows it.

use anstyle::Style;

/// Lays out `rows` below `columns`: their titles with `|` between them. Cells are on the left of a
/// column, or on its right if the title begins with `>`. Those of the last column are never padded,
/// so names of any width may stand there.
pub(crate) fn layout(columns: &str, rows: &[Vec<String>]) -> String {
    let columns: Vec<(&str, bool)> = columns
        .split('|')
        .map(|title| {
            title
                .strip_prefix('>')
                .map_or((title, false), |title| (title, true))
        })
        .collect();
    let mut widths: Vec<usize> = columns
        .iter()
        .map(|(title, _)| title.chars().count())
        .collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (place, cell) in cells.enumerate() {
            let last = place + 1 == columns.len();
            if place > 0 {
                text.push_str("  ");
            }
            let padding = " ".repeat(widths[place] - cell.chars().count());
            match columns[place] {
                (_, true) => text.extend([&padding, cell]),
                _ if last => text.push_str(cell),
                _ => text.extend([cell, &padding]),
            }
        }
        text.truncate(text.trim_end().len());
        text
    };
    let bold = Style::new().bold();
    let mut text = format!(
        "{bold}{}{bold:#}",
        line(&mut columns.iter().map(|(title, _)| *title))
    );
    for row in rows {
        text.push('\n');
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["xyz", "1", "é"], ["ß", "1,000,000", "a long name"]]
            .map(|row| row.map(str::to_owned).to_vec());
        let text = anstream::adapter::strip_str(&layout("a|>number|name", &rows)).to_string();
        assert_eq!(
            text,
            "a       number  name\nxyz          1  é\nß    1,000,000  a long name"
        );
    }
}
