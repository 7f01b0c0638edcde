//! Tables of text, with columns as wide as their content.

use anstyle::Style;

/// Lays out `rows` below `columns`, which are titles separated by `|`. Cells are aligned left, or
/// right if the title begins with `>`. Left-aligned cells of the last column are not padded, so
/// names of any width may stand there.
pub(crate) fn layout(columns: &str, rows: &[Vec<String>]) -> String {
    let mut columns: Vec<Column<'_>> = columns.split('|').map(Column::new).collect();
    for row in rows {
        for (column, cell) in columns.iter_mut().zip(row) {
            column.width = cell.chars().count().max(column.width);
        }
    }
    let bold = Style::new().bold();
    let titles = columns.iter().map(|column| column.title);
    let mut text = format!("{bold}{}{bold:#}", line(&columns, titles));
    for row in rows {
        text.push('\n');
        text.push_str(&line(&columns, row.iter().map(String::as_str)));
    }
    text
}

struct Column<'a> {
    title: &'a str,
    /// True if the cells are aligned right.
    is_right: bool,
    /// Number of characters of the widest cell.
    width: usize,
}

impl<'a> Column<'a> {
    /// Parses a title, which begins with `>` if the cells are aligned right.
    fn new(title: &'a str) -> Self {
        let (title, is_right) = title
            .strip_prefix('>')
            .map_or((title, false), |title| (title, true));
        Self {
            title,
            is_right,
            width: title.chars().count(),
        }
    }
}

/// Writes a line of cells.
fn line<'a>(columns: &[Column<'_>], cells: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    for (place, cell) in cells.enumerate() {
        let column = &columns[place];
        let last = place + 1 == columns.len();
        if place > 0 {
            text.push_str("  ");
        }
        let padding = " ".repeat(column.width - cell.chars().count());
        if column.is_right {
            text.extend([&padding, cell]);
        } else if last {
            text.push_str(cell);
        } else {
            text.extend([cell, &padding]);
        }
    }
    text.truncate(text.trim_end().len());
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
