#include "engine/letters.h"

#include <stdlib.h>
#include <string.h>

bool ddl__mail_add(ddl__mail *mail, int from, unsigned kind, const void *payload, size_t bytes)
{
    ddl__letter *letter = malloc(sizeof *letter + bytes);
    if (!letter)
        return false;
    letter->next = NULL;
    letter->from = from;
    letter->kind = kind;
    letter->bytes = bytes;
    memcpy(letter->payload, payload, bytes);
    if (mail->last)
        mail->last->next = letter;
    else
        mail->first = letter;
    mail->last = letter;
    return true;
}

ddl__letter *ddl__mail_take(ddl__mail *mail)
{
    ddl__letter *letter = mail->first;
    if (letter) {
        mail->first = letter->next;
        if (!mail->first)
            mail->last = NULL;
    }
    return letter;
}

void ddl__mail_clear(ddl__mail *mail)
{
    for (ddl__letter *letter; (letter = ddl__mail_take(mail));)
        free(letter);
}
