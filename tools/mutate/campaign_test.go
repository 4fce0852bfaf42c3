// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// repository has a Go package and a part of an interposer. The tests of both packages detect some
// mutants and miss other mutants. Some mutants do not compile. A mutant of larger that differs only
// for equal values compiles to the same code.
var repository = map[string]string{
	"go.mod":                    "module example.com/tiny\n\ngo 1.24\n",
	"tools/mutate/packages.txt": "pkg/tiny # the one in Go\ninterposer/tiny\n",
	"tools/mutate/accepted.txt": "",
	"pkg/tiny/tiny.go": `package tiny

func Larger(a, b int) int {
	if a < b {
		return b
	}
	return a
}

func Join(a, b string) string { return a + b }

func Unused() bool { return true }
`,
	"pkg/tiny/tiny_test.go": `package tiny

import "testing"

func TestLarger(t *testing.T) {
	if Larger(1, 2) != 2 || Larger(2, 1) != 2 {
		t.Error("wrong")
	}
}
`,
	"interposer/src/tiny.c": `int larger(int a, int b)
{
	if (a < b)
		return b;
	return a;
}

int smaller(int a, int b)
{
	return a < b;
}

struct pair {
	int a;
} pair(struct pair *x)
{
	return *x;
}
`,
	"interposer/src/other.c": "int other(void)\n{\n\treturn 1;\n}\n",
	"interposer/test/tiny_test.c": `int larger(int a, int b), smaller(int a, int b);
int main(void)
{
	return larger(1, 2) == 2 && larger(2, 1) == 2 && smaller(1, 2) && !smaller(2, 1) ? 0 : 1;
}
`,
	"interposer/Makefile": `unit-programs: $(BUILD)/tiny_test
$(BUILD)/%.o: src/%.c
	@mkdir -p $(BUILD)
	$(CC) $(CFLAGS) $(WARNINGS) -c -o $@ $<
$(BUILD)/%_test: test/%_test.c $(BUILD)/%.o $(BUILD)/other.o
	$(CC) -o $@ $^
`,
}

// built is a package whose tests build a program with the package, and run the program.
var built = map[string]string{
	"pkg/built/built.go":       "package built\n\nfunc Answer() int { return 7 }\n",
	"pkg/built/answer/main.go": "package main\n\nimport \"example.com/tiny/pkg/built\"\n\nfunc main() { print(built.Answer()) }\n",
	"pkg/built/built_test.go": `package built

import (
	"os/exec"
	"path/filepath"
	"testing"
)

func TestAnswer(t *testing.T) {
	program := filepath.Join(t.TempDir(), "answer")
	if output, err := exec.Command("go", "build", "-o", program, "./answer").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	if output, err := exec.Command(program).CombinedOutput(); err != nil || string(output) != "7" {
		t.Errorf("%v: %s", err, output)
	}
}
`,
}

func writeRepository(t *testing.T, accepted string) string {
	t.Helper()
	root := t.TempDir()
	write(t, root, repository)
	if err := os.WriteFile(filepath.Join(root, "tools/mutate/accepted.txt"), []byte(accepted), 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func runCampaign(t *testing.T, root string, o options) (string, error) {
	t.Helper()
	c, err := newCampaign(root, o)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	c.out = &out
	err = c.run(t.Context())
	return out.String(), err
}

// rowOf returns the table's line of a package, with single blanks and without the duration.
func rowOf(out, name string) string {
	for line := range strings.Lines(out) {
		if columns := strings.Fields(line); len(columns) == 7 && columns[6] == name {
			return strings.Join(columns[:5], " ")
		}
	}
	return ""
}

const (
	goSurvivor = "pkg/tiny/tiny.go: Larger: if a < b { => if a <= b {"
	unreached  = "pkg/tiny/tiny.go: Unused: func Unused() bool { return true } => func Unused() bool { return false }"
	goKilled   = "pkg/tiny/tiny.go: Larger: if a < b { => if !(a < b) {"
	cSurvivor  = "interposer/src/tiny.c: smaller: return a < b; => return a <= b;"
	because    = "\n    equal values are the same\n"
)

func TestSurvivorsAreReported(t *testing.T) {
	out, err := runCampaign(t, writeRepository(t, ""), options{number: 30})
	if !errors.Is(err, errWeak) {
		t.Errorf("error is %v, want %v", err, errWeak)
	}
	for _, want := range []string{
		strings.Replace(goSurvivor, ".go:", ".go:4:", 1) + "\n",
		strings.Replace(unreached, ".go:", ".go:12:", 1) + "\n",
		strings.Replace(cSurvivor, ".c:", ".c:10:", 1) + "\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in the output:\n%s", want, out)
		}
	}
	for name, want := range map[string]string{"pkg/tiny": "3 1 33 90 0", "interposer/tiny": "5 4 80 90 0"} {
		if got := rowOf(out, name); got != want {
			t.Errorf("the row of %s is %q, want %q", name, got, want)
		}
	}
	if got := strings.Count(out, " => "); got != 3 {
		t.Errorf("%d survivors are reported, want 3:\n%s", got, out)
	}
}

func TestProgramsThatTestsBuildHaveTheMutant(t *testing.T) {
	root := writeRepository(t, "")
	write(t, root, built)
	out, err := runCampaign(t, root, options{number: 30, packages: "pkg/built"})
	if err != nil || rowOf(out, "pkg/built") != "2 2 100 - 0" {
		t.Errorf("%v; output:\n%s", err, out)
	}
}

func TestAcceptedSurvivorsDoNotCount(t *testing.T) {
	list := goSurvivor + because + unreached + because + cSurvivor + because
	for _, all := range []bool{false, true} {
		out, err := runCampaign(t, writeRepository(t, list), options{number: 30, all: all})
		if err != nil || strings.Contains(out, "=>") || !strings.Contains(out, "100") {
			t.Errorf("all is %t: error %v, output:\n%s", all, err, out)
		}
	}
}

func TestListMustFit(t *testing.T) {
	list := goSurvivor + because + unreached + because
	tests := []struct {
		name, entry string
		o           options
		fits        bool
	}{
		{"no such mutant", "pkg/tiny/tiny.go: Larger: x => y", options{number: 30, packages: "pkg/tiny"}, false},
		{"a mutant that tests kill", goKilled, options{all: true, packages: "pkg/tiny"}, false},
		{"a mutant that was not tried", goKilled, options{number: 1, packages: "pkg/tiny"}, true},
		{"a file that is gone", "pkg/gone/gone.go: F: x => y", options{number: 30}, false},
		{"a package that was not tried", cSurvivor, options{number: 30, packages: "pkg/tiny"}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := runCampaign(t, writeRepository(t, list+test.entry+because), test.o)
			if got := err == nil || !strings.Contains(err.Error(), test.entry); got != test.fits {
				t.Errorf("fits is %t, want %t: %v", got, test.fits, err)
			}
		})
	}
}

// TestFailingTestsAreAnError checks that the campaign reports tests that fail without a mutant, and
// still tries the other packages.
func TestFailingTestsAreAnError(t *testing.T) {
	for _, change := range []struct{ file, old, new, name, other string }{
		{"pkg/tiny/tiny_test.go", "!= 2", "!= 3", "pkg/tiny", "interposer/tiny"},
		{"interposer/test/tiny_test.c", "== 2", "== 3", "interposer/tiny", "pkg/tiny"},
	} {
		root := writeRepository(t, "")
		text := strings.Replace(repository[change.file], change.old, change.new, 1)
		if err := os.WriteFile(filepath.Join(root, change.file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := runCampaign(t, root, options{number: 30})
		if err == nil || !strings.Contains(err.Error(), "without a mutant") {
			t.Errorf("%s: error is %v", change.name, err)
		}
		if rowOf(out, change.name) != "" || rowOf(out, change.other) == "" {
			t.Errorf("%s: the output is\n%s", change.name, out)
		}
	}
}

func TestOnlyTriesWhatMatches(t *testing.T) {
	out, err := runCampaign(t, writeRepository(t, ""), options{number: 1, only: `tiny\.go:\d+: Larger`, packages: "pkg/tiny"})
	if err != nil || rowOf(out, "pkg/tiny") != "2 1 50 90 0" {
		t.Errorf("error %v, output:\n%s", err, out)
	}
}

func TestListPrintsWithoutTrying(t *testing.T) {
	out, err := runCampaign(t, writeRepository(t, ""), options{list: true, packages: "pkg/tiny"})
	if err != nil || strings.Count(out, " => ") != 4 {
		t.Errorf("error %v, output:\n%s", err, out)
	}
}

// TestOneRunAtATime checks that a second run in the same clone is refused before it changes a file.
func TestOneRunAtATime(t *testing.T) {
	root := writeRepository(t, "")
	first, err := openJournal(newWorkshop(root).dir, options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := runCampaign(t, root, options{number: 30}); err == nil || !strings.Contains(err.Error(), "another run uses") {
		t.Errorf("beside another run, the error is %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := runCampaign(t, root, options{number: 1, packages: "pkg/tiny"}); err != nil && !errors.Is(err, errWeak) {
		t.Errorf("after another run, the error is %v", err)
	}
}

// TestResumeKeepsScores tries one of two packages, and resumes. In the resumed run, the tests of the
// tried package fail.
func TestResumeKeepsScores(t *testing.T) {
	root := writeRepository(t, "")
	earlier, err := runCampaign(t, root, options{number: 30, packages: "pkg/tiny"})
	if !errors.Is(err, errWeak) {
		t.Fatal(err)
	}
	write(t, root, map[string]string{"pkg/tiny/tiny_test.go": strings.Replace(repository["pkg/tiny/tiny_test.go"], "!= 2", "!= 3", 1)})
	out, err := runCampaign(t, root, options{number: 30, resume: true})
	if !errors.Is(err, errWeak) || strings.Contains(err.Error(), "without a mutant") {
		t.Errorf("error is %v", err)
	}
	if got, want := rowOf(out, "pkg/tiny"), rowOf(earlier, "pkg/tiny"); got != want || rowOf(out, "interposer/tiny") == "" {
		t.Errorf("the row of pkg/tiny is %q, want %q; output:\n%s", got, want, out)
	}
	if got := strings.Count(out, " => "); got != 3 {
		t.Errorf("%d survivors are reported, want 3:\n%s", got, out)
	}
	for _, o := range []options{{number: 30, packages: "pkg/tiny"}, {number: 30, seed: 2, resume: true, packages: "pkg/tiny"}} {
		if out, err := runCampaign(t, root, o); err == nil || !strings.Contains(err.Error(), "without a mutant") {
			t.Errorf("%+v keeps scores: %v\n%s", o, err, out)
		}
	}
}

// TestIsolatedEnds checks that isolated returns in time if a hanging mutant leaves a process that
// holds the output open.
func TestIsolatedEnds(t *testing.T) {
	passed, _, err := isolated(t.Context(), time.Second, t.TempDir(), nil, "sh", "-c", "setsid sleep 1000 & sleep 1000")
	if err != nil || passed {
		t.Errorf("passed is %t, error %v", passed, err)
	}
}

// TestIsolatedCleansUp checks that isolated removes a program's temporary files and survives a
// program that kills all its processes.
func TestIsolatedCleansUp(t *testing.T) {
	dir := t.TempDir()
	passed, output, err := isolated(t.Context(), timeout(0), dir, nil, "sh", "-c", `mktemp; kill -9 -1; echo $TMPDIR > temp`)
	if err != nil || !passed {
		t.Fatalf("passed is %t, error %v:\n%s", passed, err, output)
	}
	temp, err := os.ReadFile(filepath.Join(dir, "temp"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(strings.TrimSpace(string(temp))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there: %v", temp, err)
	}
}
