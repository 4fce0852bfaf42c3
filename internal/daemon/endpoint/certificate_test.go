// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// write writes a new certificate into a directory, with the modification time at.
func write(t *testing.T, dir string, at time.Time) []byte {
	t.Helper()
	made, err := sign()
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(made.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: made.Certificate[0]}, "tls.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(dir, name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	return made.Certificate[0]
}

// TestCertificateIsRenewed checks that the server uses a new certificate when the files change, and
// the previous certificate while the new files are unreadable.
func TestCertificateIsRenewed(t *testing.T) {
	dir := t.TempDir()
	var log strings.Builder
	if _, err := newCertificate(dir, nil); err == nil {
		t.Error("there is no certificate, and no error")
	}
	first := write(t, dir, time.Unix(1000, 0))
	c, err := newCertificate(dir, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	is := func(want []byte, when string) {
		t.Helper()
		got, err := c.get(nil)
		if err != nil || !bytes.Equal(got.Certificate[0], want) {
			t.Errorf("%s it is another certificate, %v", when, err)
		}
	}
	is(first, "at the start")
	if err := os.WriteFile(filepath.Join(dir, "tls.crt"), []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	is(first, "while the file is broken")
	if !strings.Contains(log.String(), "failed to read the certificate") {
		t.Errorf("the log lacks the broken certificate: %s", log.String())
	}
	is(write(t, dir, time.Unix(2000, 0)), "when it is renewed")
}
