// SPDX-License-Identifier: Apache-2.0

package finding

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTable(t *testing.T) {
	var out bytes.Buffer
	if err := WriteTable(&out, []Finding{{"nri", OK, "on", ""}, {"guard", Problem, "not loaded", "restart"}}); err != nil {
		t.Fatal(err)
	}
	want := "ok       nri    on\nproblem  guard  not loaded\n                → restart\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}
