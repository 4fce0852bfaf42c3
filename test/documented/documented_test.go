// SPDX-License-Identifier: Apache-2.0

package documented

import (
	"os"
	"slices"
	"testing"
	"time"
)

func TestStates(t *testing.T) {
	for row, want := range map[string]bool{
		"| a | 64 open |": true, "| a | 64, or less |": true, "| a | 640, and 64 |": true,
		"| a | 640 |": false, "| a | 164 |": false, "| a | 1,064 |": false, "| a | 0.64 |": false, "| a |": false,
	} {
		if got := states(row, "64"); got != want {
			t.Errorf("%q: %v", row, got)
		}
	}
}

func TestFormats(t *testing.T) {
	for got, want := range map[string]string{
		Count(64): "64", Count(4096): "4,096", Count(1_002_003): "1,002,003",
		Bytes(64): "64 bytes", Bytes(16 << 10): "16 KiB", Bytes(1025): "1,025 bytes",
		Time(10 * time.Millisecond): "10 ms", Time(900 * time.Millisecond): "0.9 s", Time(time.Minute): "60 s", Time(2 * time.Minute): "2 minutes",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestCommands(t *testing.T) {
	t.Chdir(t.TempDir())
	const text = "# A\n\n## First\n\n```sh\na \\\n  b\n```\n\nText.\n\n```sh\nc\n```\n\n```yaml\nd\n```\n\n## Second\n\n```sh\ne\n```\n"
	if err := os.WriteFile("page.md", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := Commands(t, "page.md", "First"), []string{"a \\\n  b\n", "c\n"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
