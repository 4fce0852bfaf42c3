// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "log lines that no program reads", documented.Count(mostLines)+" lines wait")
}

// TestALogThatNobodyReadsKeepsNobodyWaiting checks that writers do not wait for a log that nobody
// reads. A pipe without a reader accepts 64 KiB.
func TestALogThatNobodyReadsKeepsNobodyWaiting(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer read.Close()
		log, err := Logger(config.Log{Level: "info", Format: format}, write)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		const said = 2 * mostLines
		for k := range said {
			log.Info(strings.Repeat("x", 1024), "number", k)
		}
		current.Load().flush()
		if took := time.Since(begin); took > 2*flushPatience {
			t.Errorf("%s: to log %d lines took %v", format, said, took)
		}

		all := make(chan []byte)
		go func() {
			content, _ := io.ReadAll(read)
			all <- content
		}()
		current.Load().flush()
		log.Info("last")
		current.Load().flush()
		write.Close()
		content := string(<-all)
		lines := bytes.Count([]byte(content), []byte("\n"))
		// the buffered lines, the lines in the pipe, the report of dropped lines, and
		// the last line
		if lines < mostLines+2 || lines > mostLines+200 {
			t.Errorf("%s: of %d lines %d are in the log", format, said, lines)
		}
		dropped := said + 2 - lines
		for _, want := range []string{"number", "last", "dropped log lines", fmt.Sprint(dropped)} {
			if !strings.Contains(content, want) {
				t.Errorf("%s: %q is not in the log", format, want)
			}
		}
	}
}

func TestLinesAreInOrder(t *testing.T) {
	var file bytes.Buffer
	log, err := Logger(config.Log{Level: "info"}, &file)
	if err != nil {
		t.Fatal(err)
	}
	want := ""
	for k := range 100 {
		log.Info("said", "number", k)
		want += fmt.Sprintf("said number=%d\n", k)
	}
	current.Load().flush()
	got := ""
	for line := range strings.Lines(file.String()) {
		_, said, _ := strings.Cut(line, "msg=")
		got += said
	}
	if got != want {
		t.Errorf("got %q", got)
	}
}
