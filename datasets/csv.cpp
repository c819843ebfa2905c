#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <system_error>

#include "datasets/support/csv_table.h"
#include "datasets/support/data_file.h"
#include "datasets/support/random.h"
#include "datasets/support/samples.h"
#include "registry/suggest.h"

namespace runner::datasets {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string path;
  std::string target;
  std::string task = "classes";
  std::vector<std::string> columns;
  std::vector<std::string> categorical;
  std::int64_t max_categories = 1000;
  bool standardize = true;
  std::string missing = "error";
  std::vector<std::string> missing_values = {"", "NA", "nan"};
  std::string separator = ",";
  double validation_fraction = 0.2;
  double test_fraction = 0.0;
  std::int64_t split_seed = 0;
};

constexpr auto kRows = registry::rows<Options>({
    {.name = "path",
     .member = &Options::path,
     .doc = "the file, with a header line; absolute or relative to the experiment's folder"},
    {.name = "target", .member = &Options::target, .doc = "name of the column to predict"},
    {.name = "task",
     .member = &Options::task,
     .doc = "what the target holds: class labels, or one real number a row",
     .choices = {"classes", "values"}},
    {.name = "columns",
     .member = &Options::columns,
     .doc = "names of the input columns, in order; empty means all but the target"},
    {.name = "categorical",
     .member = &Options::categorical,
     .doc = "input columns to one-hot encode though they hold numbers; columns of text are found "
            "by themselves"},
    {.name = "max_categories",
     .member = &Options::max_categories,
     .doc = "most categories that a column, or classes that the target, may have",
     .range = registry::at_least(2)},
    {.name = "standardize",
     .member = &Options::standardize,
     .doc = "give numeric inputs mean 0 and deviation 1, measured on the training rows"},
    {.name = "missing",
     .member = &Options::missing,
     .doc = "a missing cell: error, mean (the training rows' mean; no category at all) or drop_row",
     .choices = {"error", "mean", "drop_row"}},
    {.name = "missing_values",
     .member = &Options::missing_values,
     .doc = "cells that count as missing"},
    {.name = "separator",
     .member = &Options::separator,
     .doc = "the character between cells, for example \";\" or \"\\t\""},
    {.name = "validation_fraction",
     .member = &Options::validation_fraction,
     .doc = "share of the rows, drawn at random, for validation",
     .range = registry::from_to_below(0, 1)},
    {.name = "test_fraction",
     .member = &Options::test_fraction,
     .doc = "share of the rows, drawn at random, for the test",
     .range = registry::from_to_below(0, 1)},
    {.name = "split_seed", .member = &Options::split_seed, .doc = "seed of the split alone"},
});
static_assert(registry::covers<Options>(kRows));

using RowNumbers = std::vector<std::size_t>;

/// The rows of each part, in the order of the file.
struct Split {
  RowNumbers train;
  RowNumbers validation;
  RowNumbers test;

  [[nodiscard]] const RowNumbers& part(Part part) const {
    return part == Part::train ? train : part == Part::validation ? validation : test;
  }
};

/// How one input column becomes numbers.
struct Encoder {
  std::size_t column = 0;
  double mean = 0.0;                         ///< stands in for missing numbers
  double shift = 0.0;                        ///< subtracted from a number
  double deviation = 1.0;                    ///< what a number is divided by
  std::vector<std::string_view> categories;  ///< sorted; empty for a numeric column

  [[nodiscard]] std::size_t width() const { return categories.empty() ? 1 : categories.size(); }
};

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// The cell as a number that a float can hold.
std::optional<double> number_in(std::string_view cell) {
  cell = trimmed(cell);
  if (cell.starts_with('+') && !cell.starts_with("+-")) cell.remove_prefix(1);
  double value = 0.0;
  const char* const end = cell.data() + cell.size();
  const auto [stop, error] = std::from_chars(cell.data(), end, value);
  if (error != std::errc{} || stop != end) return std::nullopt;
  // False for nan too.
  if (!(std::abs(value) <= std::numeric_limits<float>::max())) return std::nullopt;
  return value;
}

char separator_of(const Options& options) {
  if (options.separator.size() == 1 &&
      options.separator.find_first_of("\"\r\n") == std::string::npos) {
    return options.separator.front();
  }
  throw diag::Error(diag::Exit::invalid,
                    "'separator' must be one character other than a quote or a line end, found '" +
                        shown(options.separator) + "'");
}

/// What the options contradict by themselves, without the file.
void check(const Options& options) {
  static_cast<void>(separator_of(options));
  if (options.path.empty()) {
    throw diag::Error(diag::Exit::invalid, "the csv dataset needs a 'path'",
                      "set dataset.path to the file");
  }
  if (options.target.empty()) {
    throw diag::Error(diag::Exit::invalid, "the csv dataset needs a 'target'",
                      "set dataset.target to the name of the column to predict");
  }
  if (options.validation_fraction + options.test_fraction < 1.0) return;
  throw diag::Error(diag::Exit::invalid,
                    "'validation_fraction' " + registry::to_toml(options.validation_fraction) +
                        " and 'test_fraction' " + registry::to_toml(options.test_fraction) +
                        " leave no rows for training");
}

/// A CSV file read, split and ready to encode.
class Prepared {
 public:
  Prepared(const Options& options, const fs::path& path)
      : options_(options), table_(path, separator_of(options)) {
    target_ = column_named(options_.target, "target");
    const std::vector<std::size_t> inputs = input_columns();
    split_rows(inputs);
    learn_target();
    for (const std::size_t column : inputs) encoders_.push_back(learn(column));
  }

  [[nodiscard]] Spec spec() const {
    Spec spec;
    spec.input = {static_cast<std::int64_t>(width())};
    if (predicts_classes()) {
      spec.classes = static_cast<std::int64_t>(classes_.size());
      for (const std::string_view name : classes_) spec.class_names.push_back(shown(name));
    } else {
      spec.target = TargetKind::values;
      spec.target_values = 1;
      spec.binary = std::all_of(split_.train.begin(), split_.train.end(), [&](std::size_t row) {
        const double value = target_number(row);
        return value == 0.0 || value == 1.0;
      });
    }
    spec.train_size = static_cast<std::int64_t>(split_.train.size());
    spec.validation_size = static_cast<std::int64_t>(split_.validation.size());
    spec.test_size = static_cast<std::int64_t>(split_.test.size());
    return spec;
  }

  [[nodiscard]] std::unique_ptr<Samples> samples(Part part) const {
    const RowNumbers& rows = split_.part(part);
    std::vector<float> inputs(rows.size() * width());
    float* out = inputs.data();
    for (const std::size_t row : rows) {
      for (const Encoder& encoder : encoders_) {
        encode(encoder, row, out);
        out += encoder.width();
      }
    }
    if (predicts_classes()) {
      std::vector<std::int64_t> classes;
      for (const std::size_t row : rows) classes.push_back(class_of(row));
      return std::make_unique<FloatRows>(
          FloatRows::with_classes(std::move(inputs), std::move(classes)));
    }
    std::vector<float> values;
    for (const std::size_t row : rows) values.push_back(static_cast<float>(target_number(row)));
    return std::make_unique<FloatRows>(
        FloatRows::with_values(std::move(inputs), std::move(values), 1));
  }

 private:
  [[nodiscard]] bool predicts_classes() const { return options_.task == "classes"; }
  [[nodiscard]] std::size_t width() const {
    std::size_t width = 0;
    for (const Encoder& encoder : encoders_) width += encoder.width();
    return width;
  }
  [[nodiscard]] bool is_missing(std::size_t row, std::size_t column) const {
    const std::string_view cell = trimmed(table_.cell(row, column));
    return std::find(options_.missing_values.begin(), options_.missing_values.end(), cell) !=
           options_.missing_values.end();
  }

  [[nodiscard]] std::size_t column_named(const std::string& name, const std::string& option) const {
    const std::vector<std::string_view>& columns = table_.columns();
    const auto found = std::find(columns.begin(), columns.end(), name);
    if (found != columns.end()) return static_cast<std::size_t>(found - columns.begin());
    const std::string_view near = registry::nearest(name, columns);
    std::string help;
    if (!near.empty()) {
      help = "did you mean '" + shown(near) + "'?";
    } else {
      std::vector<std::string> names;
      names.reserve(columns.size());
      for (const std::string_view column : columns) names.push_back(shown(column));
      help = "the columns are " +
             registry::join_or(std::vector<std::string_view>(names.begin(), names.end()));
    }
    table_.reject("'" + option + "' names the column '" + shown(name) + "', which does not exist",
                  help);
  }

  [[nodiscard]] std::vector<std::size_t> input_columns() const {
    std::vector<std::size_t> inputs;
    for (const std::string& name : options_.columns) {
      const std::size_t column = column_named(name, "columns");
      if (column == target_) table_.reject("'columns' holds the target '" + shown(name) + "'");
      if (std::find(inputs.begin(), inputs.end(), column) != inputs.end()) {
        table_.reject("'columns' holds '" + shown(name) + "' twice");
      }
      inputs.push_back(column);
    }
    if (options_.columns.empty()) {
      inputs.resize(table_.columns().size());
      std::iota(inputs.begin(), inputs.end(), std::size_t{0});
      inputs.erase(inputs.begin() + static_cast<std::ptrdiff_t>(target_));
    }
    if (inputs.empty()) table_.reject("there is no column but the target");
    for (const std::string& name : options_.categorical) {
      const std::size_t column = column_named(name, "categorical");
      if (std::find(inputs.begin(), inputs.end(), column) != inputs.end()) continue;
      table_.reject("'categorical' names '" + shown(name) + "', which is not an input column");
    }
    return inputs;
  }

  /// Draws the parts from the rows that are kept; each kept row lands in exactly one.
  void split_rows(const std::vector<std::size_t>& inputs) {
    RowNumbers kept;
    for (std::size_t row = 0; row < table_.row_count(); ++row) {
      if (keeps(row, inputs)) kept.push_back(row);
    }
    if (kept.empty()) table_.reject("every row has a missing cell, so 'drop_row' leaves none");
    const std::uint64_t key = random_key({static_cast<std::uint64_t>(options_.split_seed)});
    for (std::size_t i = kept.size() - 1; i > 0; --i) {
      std::swap(kept[i], kept[random_bits(key, i) % (i + 1)]);
    }
    const auto share = [&](double fraction) {
      return static_cast<std::ptrdiff_t>(fraction * static_cast<double>(kept.size()));
    };
    const auto validation_end = kept.begin() + share(options_.validation_fraction);
    const auto test_end = validation_end + share(options_.test_fraction);
    split_.validation.assign(kept.begin(), validation_end);
    split_.test.assign(validation_end, test_end);
    split_.train.assign(test_end, kept.end());
    for (RowNumbers* part : {&split_.train, &split_.validation, &split_.test}) {
      std::sort(part->begin(), part->end());
    }
  }

  /// False for a row to drop; throws for a missing cell that nothing stands in for.
  [[nodiscard]] bool keeps(std::size_t row, const std::vector<std::size_t>& inputs) const {
    const bool drops = options_.missing == "drop_row";
    if (is_missing(row, target_)) {
      if (drops) return false;
      fail_missing(row, target_, "set dataset.missing to \"drop_row\"");
    }
    for (const std::size_t column : inputs) {
      if (options_.missing == "mean" || !is_missing(row, column)) continue;
      if (drops) return false;
      fail_missing(row, column, "set dataset.missing to \"mean\" or \"drop_row\"");
    }
    return true;
  }

  [[noreturn]] void fail_missing(std::size_t row, std::size_t column,
                                 const std::string& help) const {
    table_.fail(row, column, "the cell '" + shown(table_.cell(row, column)) + "' is missing", help);
  }

  /// Finds the class labels of the training rows, or checks that every target is a number.
  void learn_target() {
    if (!predicts_classes()) {
      for (const RowNumbers* rows : {&split_.train, &split_.validation, &split_.test}) {
        for (const std::size_t row : *rows) static_cast<void>(target_number(row));
      }
      return;
    }
    reject_fractions();
    classes_ = distinct(target_);
    sort_labels(classes_);
    for (std::size_t i = 0; i < classes_.size(); ++i) {
      class_numbers_[classes_[i]] = static_cast<std::int64_t>(i);
    }
    if (classes_.size() < 2) {
      table_.reject("the target '" + shown(options_.target) + "' has the one class '" +
                    shown(classes_.front()) + "' in the training rows, expected at least 2");
    }
    for (const RowNumbers* rows : {&split_.validation, &split_.test}) {
      for (const std::size_t row : *rows) static_cast<void>(class_of(row));
    }
  }

  void reject_fractions() const {
    for (const std::size_t row : split_.train) {
      const std::optional<double> value = number_in(table_.cell(row, target_));
      if (!value || *value == std::floor(*value)) continue;
      table_.fail(
          row, target_,
          "expected a class label, found the number '" + shown(table_.cell(row, target_)) + "'",
          "to predict numbers, set dataset.task to \"values\"");
    }
  }

  /// The different cells of a column in the training rows, missing ones left out, sorted.
  [[nodiscard]] std::vector<std::string_view> distinct(std::size_t column) const {
    std::vector<std::string_view> cells;
    for (const std::size_t row : split_.train) {
      if (!is_missing(row, column)) cells.push_back(table_.cell(row, column));
    }
    std::sort(cells.begin(), cells.end());
    cells.erase(std::unique(cells.begin(), cells.end()), cells.end());
    if (static_cast<std::int64_t>(cells.size()) > options_.max_categories) {
      table_.reject("the column '" + shown(table_.columns()[column]) + "' has " +
                        std::to_string(cells.size()) + " different texts, more than the " +
                        std::to_string(options_.max_categories) + " of 'max_categories'",
                    "an identifier? leave it out through dataset.columns, or raise "
                    "dataset.max_categories");
    }
    return cells;
  }

  /// Labels that are all numbers go by value (2 before 10), others stay as sorted.
  static void sort_labels(std::vector<std::string_view>& labels) {
    const bool numbers = std::all_of(labels.begin(), labels.end(), [](std::string_view label) {
      return number_in(label).has_value();
    });
    if (!numbers) return;
    std::stable_sort(labels.begin(), labels.end(), [](std::string_view a, std::string_view b) {
      return *number_in(a) < *number_in(b);
    });
  }

  [[nodiscard]] std::int64_t class_of(std::size_t row) const {
    const std::string_view label = table_.cell(row, target_);
    const auto found = class_numbers_.find(label);
    if (found != class_numbers_.end()) return found->second;
    table_.fail(row, target_, "the class '" + shown(label) + "' is in no training row",
                "merge rare classes, or try another dataset.split_seed");
  }

  [[nodiscard]] double target_number(std::size_t row) const {
    const std::optional<double> value = number_in(table_.cell(row, target_));
    if (value) return *value;
    table_.fail(row, target_, "expected a number, found '" + shown(table_.cell(row, target_)) + "'",
                "to predict class labels, set dataset.task to \"classes\"");
  }

  [[nodiscard]] Encoder learn(std::size_t column) const {
    Encoder encoder;
    encoder.column = column;
    if (is_categorical(column)) {
      encoder.categories = distinct(column);
      return encoder;
    }
    learn_scale(encoder);
    return encoder;
  }

  /// A column is categorical when it is listed, or when most of its training cells are text.
  [[nodiscard]] bool is_categorical(std::size_t column) const {
    const std::string_view name = table_.columns()[column];
    const auto& listed = options_.categorical;
    if (std::find(listed.begin(), listed.end(), name) != listed.end()) {
      if (!distinct(column).empty()) return true;
      table_.reject("the column '" + shown(name) + "' has no cell in the training rows");
    }
    std::size_t numbers = 0;
    std::size_t texts = 0;
    for (const std::size_t row : split_.train) {
      if (is_missing(row, column)) continue;
      ++(number_in(table_.cell(row, column)) ? numbers : texts);
    }
    if (numbers + texts == 0) {
      table_.reject("the column '" + shown(name) + "' has no cell in the training rows",
                    "leave it out through dataset.columns");
    }
    return texts > numbers;
  }

  void learn_scale(Encoder& encoder) const {
    std::vector<double> values;
    for (const std::size_t row : split_.train) {
      if (!is_missing(row, encoder.column)) values.push_back(input_number(row, encoder.column));
    }
    const auto count = static_cast<double>(values.size());
    // Divided first: the sum of finite numbers may overflow.
    for (const double value : values) encoder.mean += value / count;
    if (!options_.standardize) return;
    encoder.shift = encoder.mean;
    double variance = 0.0;
    for (const double value : values) {
      variance += (value - encoder.mean) * (value - encoder.mean) / count;
    }
    const double deviation = std::sqrt(variance);
    // A constant column's rounding error must not be blown up to deviation 1.
    if (deviation > 1e-12 * std::abs(encoder.mean)) encoder.deviation = deviation;
  }

  [[nodiscard]] double input_number(std::size_t row, std::size_t column) const {
    const std::optional<double> value = number_in(table_.cell(row, column));
    if (value) return *value;
    table_.fail(row, column, "expected a number, found '" + shown(table_.cell(row, column)) + "'",
                "most cells of this column are numbers: mend the cell, add it to "
                "dataset.missing_values, or list the column in dataset.categorical");
  }

  /// Writes width() floats. A category that no training row has is all zeros.
  void encode(const Encoder& encoder, std::size_t row, float* out) const {
    const bool missing = is_missing(row, encoder.column);
    if (encoder.categories.empty()) {
      const double value = missing ? encoder.mean : input_number(row, encoder.column);
      *out = static_cast<float>((value - encoder.shift) / encoder.deviation);
      return;
    }
    std::fill_n(out, encoder.width(), 0.0F);
    if (missing) return;
    const auto& categories = encoder.categories;
    const std::string_view cell = table_.cell(row, encoder.column);
    const auto found = std::lower_bound(categories.begin(), categories.end(), cell);
    if (found != categories.end() && *found == cell) out[found - categories.begin()] = 1.0F;
  }

  const Options& options_;
  CsvTable table_;
  std::size_t target_ = 0;
  Split split_;
  std::vector<std::string_view> classes_;
  std::map<std::string_view, std::int64_t> class_numbers_;
  std::vector<Encoder> encoders_;
};

Spec describe(const Options& options, const Context& context) {
  check(options);
  const fs::path path = resolve(context.base, options.path);
  std::error_code ignored;
  if (fs::exists(path, ignored)) return Prepared(options, path).spec();
  Spec unknown;
  unknown.complete = false;
  unknown.target = options.task == "classes" ? TargetKind::classes : TargetKind::values;
  if (unknown.target == TargetKind::values) unknown.target_values = 1;
  return unknown;
}

std::unique_ptr<Samples> load(const Options& options, const Context& context, Part part) {
  check(options);
  return Prepared(options, resolve(context.base, options.path)).samples(part);
}

std::vector<fs::path> files(const Options& options, const Context& context) {
  return {resolve(context.base, options.path)};
}

}  // namespace

void register_csv(Datasets& datasets) {
  datasets.add(dataset("csv",
                       "a table of numbers and text in a CSV file, with a named target column",
                       kRows, describe, load, files));
}

}  // namespace runner::datasets
