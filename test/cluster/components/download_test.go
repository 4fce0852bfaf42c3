// SPDX-License-Identifier: Apache-2.0

package components

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

// published serves a program at the path of Kubernetes' programs, with a checksum.
func published(t *testing.T, program, checksum string) *httptest.Server {
	t.Helper()
	path := "/v1.2.3/bin/linux/" + runtime.GOARCH + "/hi"
	mux := http.NewServeMux()
	mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, program) })
	mux.HandleFunc(path+".sha256", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, checksum) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

// TestDownload downloads a program from a local server. If the server is down, lacks the program or
// publishes another checksum, the program comes from its sources.
func TestDownload(t *testing.T) {
	const program = "#!/bin/sh\necho downloaded\n"
	checksum := fmt.Sprintf("%x", sha256.Sum256([]byte(program)))
	away := httptest.NewServer(http.NotFoundHandler())
	away.Close()
	empty := httptest.NewServer(http.NotFoundHandler())
	defer empty.Close()
	for name, test := range map[string]struct{ url, output, reports string }{
		"a checksum":            {published(t, program, checksum).URL, "downloaded\n", "downloaded hello in"},
		"a checksum and a name": {published(t, program, checksum+"  hi\n").URL + "/", "downloaded\n", "downloaded hello in"},
		"another checksum":      {published(t, program+"x", checksum).URL, "built\n", `and "` + checksum + `" is published`},
		"no checksum":           {published(t, program, "").URL, "built\n", `and "" is published`},
		"another version":       {empty.URL, "built\n", "the server answered 404 Not Found"},
		"no server":             {away.URL, "built\n", "connection refused"},
		"not wanted":            {"", "built\n", "building hello"},
	} {
		t.Run(name, func(t *testing.T) {
			b, m := hello(t, "package main\n\nimport \"os\"\n\nfunc main() { _, _ = os.Stdout.WriteString(\"built\\n\") }\n")
			var out bytes.Buffer
			b.Out, b.Downloads, m.Published = &out, test.url, "v1.2.3"
			binaries, err := b.Build(t.Context(), []Module{m})
			if err != nil {
				t.Fatal(err)
			}
			got, err := exec.CommandContext(t.Context(), binaries["hi"]).Output()
			if err != nil || string(got) != test.output {
				t.Errorf("the program prints %q, %v, want %q", got, err, test.output)
			}
			if !strings.Contains(out.String(), test.reports) {
				t.Errorf("Build reports %q, want %q", out.String(), test.reports)
			}
			out.Reset()
			if _, err := b.Build(t.Context(), []Module{m}); err != nil || strings.Contains(out.String(), "downloaded") || strings.Contains(out.String(), "built hello") {
				t.Errorf("a second build: %q, %v", out.String(), err)
			}
		})
	}
}
