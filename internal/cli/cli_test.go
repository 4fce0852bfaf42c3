// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/explain"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/finding"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/local"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
)

// output runs a command of a program and returns its standard output.
func output(t *testing.T, root *cobra.Command, args ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	root.SetOut(&out)
	root.SetErr(io.Discard)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestVersionFlag(t *testing.T) {
	for _, root := range Commands() {
		got, err := output(t, root, "--version")
		if err != nil || !strings.HasSuffix(got, " version "+version.Version+"\n") {
			t.Errorf("%s --version: %q, %v", root.DisplayName(), got, err)
		}
	}
}

// TestProgramNames checks the names of programs, which have a suffix on Windows.
func TestProgramNames(t *testing.T) {
	for _, path := range []string{"kubectl-vgpu", "/usr/bin/kubectl-vgpu", "kubectl-vgpu.exe", "./kubectl-vgpu.exe"} {
		if got := programName(path); got != plugin {
			t.Errorf("%s has the name %q, want %q", path, got, plugin)
		}
	}
}

// TestExitStatuses checks that a missing program, a program that is not executable, and other
// errors have different exit statuses.
func TestExitStatuses(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		want int
	}{
		{[]string{"run", "--memory", "1Gi", "--", "/nonexistent/program"}, exitNotFound},
		{[]string{"run", "--memory", "1Gi", "--", "no-such-program-in-the-path"}, exitNotFound},
		{[]string{"run", "--memory", "1Gi", "--", plain}, exitNotStartable},
		{[]string{"run", "--memory", "1Gi", "--", filepath.Dir(plain)}, exitNotStartable},
		{[]string{"run", "--", "true"}, exitFailed},
		{[]string{"ping", "--socket", "/nonexistent/socket"}, exitAway},
		{[]string{"no-such-command"}, exitFailed},
		{[]string{"--version"}, 0},
	} {
		if got := Main(append([]string{"vgpuctl"}, tt.args...)); got != tt.want {
			t.Errorf("vgpuctl %q exits with %d, want %d", tt.args, got, tt.want)
		}
	}
}

// TestErrorsOfCommandLinesNameTheHelp checks that only errors in the command line refer to the help.
func TestErrorsOfCommandLinesNameTheHelp(t *testing.T) {
	for line, want := range map[string]string{
		"--nonsense":         "vgpuctl --help",
		"nonsense":           "vgpuctl --help",
		"gte":                "vgpuctl --help",
		"run":                "vgpuctl run --help",
		"run --cores many x": "vgpuctl run --help",
		"get pods --nonsnse": "vgpuctl get pods --help",
		"run -- true":        "",
		"get":                "",
		"status -o xml":      "",
	} {
		root := vgpuctl()
		root.SetArgs(strings.Fields(line))
		var errs strings.Builder
		if status := execute(root, &errs); status != exitFailed {
			t.Errorf("vgpuctl %s exits with %d", line, status)
		}
		_, help, _ := strings.Cut(errs.String(), ": run '")
		if got := strings.TrimSuffix(help, "'\n"); got != want || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("vgpuctl %s: %q names the help %q, want %q", line, errs.String(), got, want)
		}
	}
}

func TestStatusesOfErrors(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), exitFailed},
		{agentapi.ErrAway, exitAway},
		{unstarted(errors.New("x")), exitFailed},
		{unstarted(errors.Join(errors.New("y"), agentapi.ErrAway)), exitAway},
		{unstarted(programError(exec.ErrNotFound)), exitNotFound},
		{unstarted(programError(unix.ENOEXEC)), exitNotStartable},
		{unstarted(programError(unix.ENOENT)), exitNotFound},
		{notVerified(errors.New("x")), exitNotVerified},
	} {
		if got := exitStatusOf(tt.err); got != tt.want {
			t.Errorf("%v: %d, want %d", tt.err, got, tt.want)
		}
	}
}

func programError(err error) error { return local.NewProgramError(err) }

// TestExitStatusesAreDocumented checks that the reference lists each exit status.
func TestExitStatusesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{"| 0 |", "| 1 |", "| 2 |", "| 3 |", "| 126 |", "| 127 |"} {
		if !strings.Contains(string(text), "\n"+row) {
			t.Errorf("docs/reference/cli.md has no row %q of exit statuses", row)
		}
	}
}

// TestMgctlsHabits checks the habits of MetaGPU's users: short names, and flags that need no value
// here.
func TestMgctlsHabits(t *testing.T) {
	const socket = "/nonexistent/socket"
	for _, line := range []string{
		"get p --socket " + socket, "get d --socket " + socket, "g p --socket " + socket, "get process --socket " + socket,
		"get d --addr localhost:50052 -t secret --socket " + socket, "-t secret get p --socket " + socket,
		"-s localhost:50052 --json-log --verbose -o json get p --socket " + socket, "get p -o raw -w --socket " + socket,
	} {
		_, err := output(t, mgctl(), strings.Fields(strings.Replace(line, " -w", "", 1))...)
		if !errors.Is(err, agentapi.ErrAway) {
			t.Errorf("mgctl %s: %v, want that no agent answers", line, err)
		}
	}
}

// TestOutputFlags checks that every command with a flag --output names the formats, refuses others,
// and offers JSON.
func TestOutputFlags(t *testing.T) {
	var with int
	for _, root := range Commands() {
		walk(root, func(cmd *cobra.Command) {
			flag := cmd.Flags().Lookup("output")
			if flag == nil {
				return
			}
			with++
			if !strings.Contains(flag.Usage, show.FormatJSON) {
				t.Errorf("%s: --output %s", cmd.CommandPath(), flag.Usage)
			}
			args := slices.Concat(strings.Fields(cmd.CommandPath())[1:], []string{"name", "-o", "xml"})
			if strings.HasPrefix(root.DisplayName(), "kubectl ") {
				args = append(args[1:], "--kubeconfig", kubeconfig(t))
			}
			if cmd.Args != nil && cmd.Args(cmd, []string{"name"}) != nil {
				args = slices.DeleteFunc(args, func(a string) bool { return a == "name" })
			}
			if _, err := output(t, root, args...); err == nil || !strings.Contains(err.Error(), `--output is "xml"; allowed: `) {
				t.Errorf("%v: %v", args, err)
			}
		})
	}
	if with < 15 {
		t.Errorf("%d commands have a flag --output", with)
	}
}

func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, c := range cmd.Commands() {
		walk(c, visit)
	}
}

// kubeconfig writes a kubeconfig of an API server that does not exist.
func kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config")
	text := `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],"users":[{"name":"u","user":{}}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestKubeconfigErrors checks that errors of the kubeconfig name the flag. client-go's advice to set
// KUBERNETES_MASTER has no effect.
func TestKubeconfigErrors(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "missing"))
	for _, line := range []string{
		"get gpus", "top --once", "describe pod a", "doctor", "get gpus --kubeconfig /nonexistent/config", "get gpus --context nonsense",
	} {
		_, err := output(t, kubectlVgpu(), strings.Fields(line)...)
		if err == nil || !strings.Contains(err.Error(), "--kubeconfig") || strings.Contains(err.Error(), "KUBERNETES_MASTER") {
			t.Errorf("kubectl vgpu %s: %v", line, err)
		}
	}
}

// oneNode is a sight of a cluster whose node-1 answers. silent is the error of the other nodes.
type oneNode struct {
	here
	silent error
}

func (s *oneNode) open(context.Context) (show.Source, show.Filter, error) {
	return s, show.Filter{}, nil
}

func (s *oneNode) Overviews(context.Context) ([]agentapi.Overview, error) {
	return []agentapi.Overview{{Node: "node-1"}}, s.silent
}

func (s *oneNode) Follow(context.Context, func(string, agentapi.Overview, error)) {}

// TestUnknownNodes checks that the name of a node without an agent is an error, unless the agent did
// not answer.
func TestUnknownNodes(t *testing.T) {
	for _, command := range []func(sight) *cobra.Command{gpusCommand, nodesCommand, topCommand} {
		if _, err := output(t, command(&oneNode{}), "node-1"); err != nil {
			t.Error(err)
		}
		_, err := output(t, command(&oneNode{}), "node-1", "nod-1")
		if err == nil || !strings.Contains(err.Error(), "no agent on nod-1: ") {
			t.Errorf("an unknown node: %v", err)
		}
		_, err = output(t, command(&oneNode{silent: errors.New("node-2 hangs")}), "node-2")
		if err == nil || !strings.Contains(err.Error(), "node-2 hangs") || strings.Contains(err.Error(), "no agent") {
			t.Errorf("a silent node: %v", err)
		}
	}
}

// TestDescribe checks that descriptions are texts with an empty line between them, or one list.
func TestDescribe(t *testing.T) {
	gather := func(name string) (description, error) {
		if name == "missing" {
			return description{}, errors.New("not found")
		}
		table := func(out io.Writer) error { _, err := io.WriteString(out, "about "+name+"\n"); return err }
		return description{table, func() any { return explain.PodReport{Name: name} }}, nil
	}
	for format, want := range map[string]string{"table": "about a\n\nabout b\n"} {
		var out strings.Builder
		if err := describe([]string{"a", "b"}, &out, format, gather); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v", format, out.String(), err)
		}
	}
	for format, decode := range map[string]func(string, any) error{
		"json": func(text string, into any) error { return json.Unmarshal([]byte(text), into) },
		"yaml": func(text string, into any) error { return yaml.Unmarshal([]byte(text), into) },
	} {
		var out strings.Builder
		var got []explain.PodReport
		if err := errors.Join(describe([]string{"a", "b"}, &out, format, gather), decode(out.String(), &got)); err != nil {
			t.Fatalf("%s: %q: %v", format, out.String(), err)
		}
		if diff := cmp.Diff([]explain.PodReport{{Name: "a"}, {Name: "b"}}, got); diff != "" {
			t.Errorf("%s: %s", format, diff)
		}
	}
	for format, want := range map[string]string{"table": "about a\n\nabout b\n", "json": `"name": "b"`} {
		var out strings.Builder
		if err := describe([]string{"a", "missing", "b"}, &out, format, gather); err == nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s of a missing object: %q, %v", format, out.String(), err)
		}
	}
}

// TestReportsEndWithANewline checks that the doctor's output ends with a newline in each format.
func TestReportsEndWithANewline(t *testing.T) {
	findings := []finding.Finding{{Check: "nri", Level: finding.Problem, Message: "off", Fix: "switch it on"}}
	for _, format := range show.ReportFormats {
		var out strings.Builder
		err := report(&out, format, findings, func(w io.Writer) error { return finding.WriteTable(w, findings) })
		if err != nil || !strings.HasSuffix(out.String(), "\n") || strings.HasSuffix(out.String(), "\n\n") {
			t.Errorf("%s: %q, %v", format, out.String(), err)
		}
	}
}
