// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func TestBrief(t *testing.T) {
	cause := errors.New("cause")
	short := fmt.Errorf("%s: %w", strings.Repeat("x", mostText-len(": cause")), cause)
	if got := Brief(short).Error(); got != short.Error() {
		t.Errorf("an error of %d bytes became %q", mostText, got)
	}
	for _, text := range []string{"x", "…", "\xff"} {
		long := fmt.Errorf("begin %s: %w: end", strings.Repeat(text, 1<<20), cause)
		got := Brief(long)
		if s := got.Error(); len(s) > mostText || !strings.HasPrefix(s, "begin ") || !strings.HasSuffix(s, ": cause: end") || !utf8.ValidString(s) {
			t.Errorf("many %q: got %d bytes: %q", text, len(s), s)
		}
		if !errors.Is(got, cause) {
			t.Errorf("many %q: the cause is lost", text)
		}
	}
}

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "texts that a refusal quotes", documented.Bytes(mostText)+" for the refusal")
}
