// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"os"
	"strings"
	"testing"
)

// TestCompletion checks that kubectl's completion of a command line contains the commands, the names of
// objects, and the values of flags.
func TestCompletion(t *testing.T) {
	s, url := startAPIServer(t)
	s.answers = map[string]string{
		"/api/v1/namespaces/default/pods": `{"kind": "PodList", "apiVersion": "v1", "items": [{"metadata": {"name": "serve"}}, {"metadata": {"name": "train"}}]}`,
		"/api/v1/nodes":                   `{"kind": "NodeList", "apiVersion": "v1", "items": [{"metadata": {"name": "node-1"}}]}`,
	}
	config := kubeconfig(t)
	for line, want := range map[string]string{
		"d":                         "describe doctor",
		"get ":                      "gpus nodes pods",
		"get pods ":                 "serve train",
		"describe pod t":            "train",
		"top ":                      "node-1",
		"get gpus no":               "node-1",
		"get nodes x":               "",
		"get pods -o ":              "table wide json yaml name",
		"doctor --output ":          "table json yaml",
		"ps --sort-by ":             "name memory time",
		"resize train --container ": "",
	} {
		args := append([]string{"/usr/bin/" + completer, "--kubeconfig", config, "--server", url}, strings.Split(line, " ")...)
		if got := completions(t, args); got != want {
			t.Errorf("kubectl vgpu %s: the completions are %q, want %q", line, got, want)
		}
	}
}

// completions runs the program, and returns the completions that it prints.
func completions(t *testing.T, args []string) string {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	before := os.Stdout
	os.Stdout = write
	status := Main(args)
	os.Stdout = before
	write.Close()
	printed, err := io.ReadAll(read)
	if err != nil || status != 0 {
		t.Fatalf("%v ends with status %d, %v", args, status, err)
	}
	var words []string
	for line := range strings.Lines(string(printed)) {
		if word, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); !strings.HasPrefix(word, ":") {
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}
